"""100 ms that is 100 ms: how often NVML is really asked, per GPU, when its calls cost what a driver's do. From the stub's log."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.bench.figures import quantile
from tests.bench.figures import table
from tests.bench.live_cost import GPUTOP
from tests.bench.live_cost import Scene
from tests.bench.live_cost import set_up
from tests.bench.stage import REAL_COSTS
from tests.pty.terminal import Pty

SCENE = Scene(8, 20)
HUNG = 3
VARIANTS = {
    "no delay": (),
    "as real: 300 µs a call, PCIe throughput 20 ms, process lists 4 ms": REAL_COSTS,
    f"the same, a call of GPU {HUNG} hangs for 2 s": (*REAL_COSTS, f"gpu{HUNG}.hang.PowerUsage 2000", f"gpu{HUNG}.hang.FieldValues 2000"),
}


def intervals_ms(log: Path, skip_s: float) -> dict[int, list[float]]:
    """Per GPU, the times between calls of the kind that is called most often there, leaving out the first ``skip_s``."""
    calls: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for line in log.read_text().splitlines():
        kind, gpu, t_ns = line.split()
        calls[int(gpu)][kind].append(int(t_ns))
    start = min(times[0] for kinds in calls.values() for times in kinds.values()) + skip_s * 1e9
    steady = {gpu: [t for t in max(kinds.values(), key=len) if t >= start] for gpu, kinds in calls.items() if gpu >= 0}
    return {gpu: [(b - a) / 1e6 for a, b in pairwise(times)] for gpu, times in steady.items()}


def measure(settings: tuple[str, ...], run_s: float) -> tuple[dict[int, list[float]], float]:
    """Intervals per GPU, and the longest time (s) in which the screen did not move."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        with set_up(SCENE, *settings, f"log {log}") as env, Pty(GPUTOP, env=env) as terminal:
            time.sleep(run_s)
            moved = [t for t, _ in terminal.bursts if t > terminal.started + 3]
        still = max((b - a for a, b in pairwise(moved)), default=run_s)
        return intervals_ms(log, 3.0), still


def report(run_s: float = 15.0) -> Iterator[str]:
    """The table."""
    rows = []
    for name, settings in VARIANTS.items():
        per_gpu, still = measure(settings, run_s)
        others = [v for gpu, values in per_gpu.items() if gpu != HUNG for v in values]
        medians = [median(values) for values in per_gpu.values() if values]
        row = [f"{min(medians):.1f} to {max(medians):.1f}", f"{quantile(others, 0.99):.1f}", f"{max(others):.1f}"]
        rows.append([name, *row, f"{max(per_gpu[HUNG]):.0f}", f"{1000 * still:.0f}"])
    yield f"## NVML sampling ({SCENE}; ms between samples of one GPU, {run_s:g} s)"
    others = f"without GPU {HUNG}"
    head = ["calls", "median (of each GPU)", f"p99 ({others})", f"max ({others})", f"max of GPU {HUNG}", "screen still, ms"]
    yield table(head, rows)
