"""When a trainer turns from the workers that fed its steps to others: an evaluation, with a loader of its own.

The workers that fed a busy GPU all rest and others work, while the GPU does not get enough. Whoever loads for both rests in neither.
"""

from __future__ import annotations

from collections.abc import Sequence

from gputop.diagnosis.proc import ProcFacts

FED, SHORT = 0.1, 0.2  # share of the window that a GPU idles, up to which its steps are fed and from which it does not get enough
RESTS_S, WORKS = 0.7, 0.01  # a worker that has not stirred for so long rests; one that ran for this share of the window, and stirs, works
KNOWN_NS = 1_000_000_000  # so long the same ones must work: while one loader takes over from another, both do
LONGEST_NS = 20_000_000_000  # what goes on for longer is no pause


class Turns:
    """Those of one trainer that reach into the window."""

    __slots__ = ("_at_work", "_feeders", "_since_ns", "_turns")

    def __init__(self) -> None:
        self._feeders: frozenset[int] = frozenset()  # workers that fed its steps
        self._at_work: frozenset[int] = frozenset()
        self._since_ns = 0  # when these began to work, and no others
        self._turns = list[tuple[int, int]]()  # few, for which a deque has far too much room

    def note(self, workers: Sequence[ProcFacts], idle: float, t_ns: int) -> None:
        """What its workers do, and which share of the window its GPUs idle."""
        at_work = frozenset(worker.pid for worker in workers if worker.run >= WORKS and worker.still_s < RESTS_S)
        if at_work != self._at_work:
            self._at_work, self._since_ns = at_work, t_ns
        if idle <= FED and at_work and t_ns - self._since_ns >= KNOWN_NS:
            self._feeders = at_work
        elif idle >= SHORT and at_work and self._feeders and not at_work & self._feeders:
            self._extend([worker.still_s for worker in workers if worker.pid in self._feeders], t_ns)

    def _extend(self, still_s: list[float], t_ns: int) -> None:
        """The turn that goes on, or another that began when the last of those who fed it came to rest; with none left nobody knows."""
        if self._turns and t_ns - self._turns[-1][1] < RESTS_S * 1e9:
            self._turns[-1] = self._turns[-1][0], t_ns
        elif still_s:
            self._turns.append((t_ns - round(min(still_s) * 1e9), t_ns))

    def spans(self, oldest_ns: int, now_ns: int) -> list[tuple[int, int]]:
        """When it was with the others."""
        self._turns = [turn for turn in self._turns if turn[1] > oldest_ns]
        return [(since, until) for since, until in self._turns if now_ns - since <= LONGEST_NS]
