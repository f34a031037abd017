"""How close `gputop.sweep_loader` comes to a loop written by hand, and what it had predicted, on data sets of known cost."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from torch.utils.data import DataLoader

from gputop import sweep_loader
from tests.experiments.loading import Busy, Large, Slow, by_hand

WORKERS = (0, 1, 2, 4)
LENGTH = 1_000_000  # items: no loop by hand meets the end


def report(runs: int = 5, seconds: float = 2.0) -> Iterator[str]:
    """A table of Markdown. Both take turns; medians are compared."""
    lines = ["| data set | workers | by hand, batches/s | sweep | off | predicted from the first | off |", "|---|--:|--:|--:|--:|--:|--:|"]
    worst = 0.0
    for kind in (Slow, Busy, Large):
        hand: dict[int, list[float]] = {number: [] for number in WORKERS}
        ours: dict[int, list[float]] = {number: [] for number in WORKERS}
        told: dict[int, list[float]] = {number: [] for number in WORKERS}
        for _ in range(runs):
            for point in sweep_loader(DataLoader(kind(LENGTH), batch_size=4), WORKERS, seconds=seconds).points:
                ours[point.workers].append(point.batches_per_s or 0.0)
                told[point.workers].append(point.predicted_per_s or 0.0)
            for number in WORKERS:
                hand[number].append(by_hand(DataLoader(kind(LENGTH), batch_size=4, num_workers=number), seconds))
        for number in WORKERS:
            real, found, foretold = median(hand[number]), median(ours[number]), median(told[number])
            worst = max(worst, abs(found / real - 1.0))
            ahead = f"{foretold:.1f} | {100 * (foretold / found - 1.0):+.1f} %" if foretold else "– | –"
            lines.append(f"| {kind.__name__} | {number} | {real:.1f} | {found:.1f} | {100 * (found / real - 1.0):+.1f} % | {ahead} |")
    yield "## The DataLoader sweep beside a loop by hand\n\n" + "\n".join(lines)
    yield f"The farthest off by hand: {100 * worst:.1f} %, medians of {runs} runs of {seconds:g} s in turn."
