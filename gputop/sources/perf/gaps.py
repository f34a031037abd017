"""What lies between two samples of a thread that ran all the time: the kernel's, which who has no privilege may not sample."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from itertools import pairwise

from gputop.sources.perf.places import ELSEWHERE

Met = tuple[str, int]
"""Of which kind a sample was, and how long its thread had run by then, in ns."""
RUNGS, LEAST_OF_LONGER = (1.5, 2.5, 5.5, 11.5, 23.5, 47.5), 0.1
"""Periods between two samples; above the first one was left out. Between two of these are, by chance, so many of what is longer still."""
KEPT = 500
"""Steps of each kind by which the next ones are judged: those of some bursts."""


class Gaps:
    """Of one thread: a wait that yields is mostly the kernel's, as is a copy to pages that nobody has touched."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=KEPT))
        """From one sample to the next of its kind, in periods."""

    def spent(self, met: list[Met], period_ns: int) -> Counter[str]:
        """ns of CPU time by kind, of a burst of samples. What is left out between two is of that kind whose own are left out more often, if
        it is no longer than theirs; else of none."""
        spent = Counter[str]()
        passed = [(before, kind, ran_ns - then_ns) for (before, then_ns), (kind, ran_ns) in pairwise([(ELSEWHERE, 0), *met])]
        for before, kind, step_ns in passed:
            spent[kind] += min(period_ns, step_ns)
            if kind == before:
                self._steps[kind].append(step_ns / period_ns)
        gaps = {kind: _gaps(own) for kind, own in self._steps.items()}
        for before, kind, step_ns in passed[1:]:
            (_, longest), owner = max((gaps.get(one, (0.0, 0.0)), one) for one in (before, kind))
            if 1.0 < step_ns / period_ns <= longest:
                spent[owner] += step_ns - period_ns
        return spent


def _gaps(steps: deque[float]) -> tuple[float, float]:
    """How often no sample came between two, and how long those steps are at most: as by chance, the longer the fewer. Others, such as to
    read a file, are calls of their own."""
    ordered, longest = sorted(steps), RUNGS[0]
    within = [bisect_right(ordered, rung) for rung in RUNGS]
    for upto, (fewer, more) in zip(RUNGS[1:], pairwise(within), strict=True):
        if more == fewer or more - fewer < LEAST_OF_LONGER * (len(ordered) - more):
            break
        longest = upto
    return 1.0 - within[0] / len(ordered), longest
