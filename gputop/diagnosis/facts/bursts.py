"""Copies to the GPU that come together, by the counters of each tick: a step that waits for other ranks has all of its copies at once."""

from __future__ import annotations

from collections import Counter, deque

from gputop.findings import policy
from gputop.model.probes import CudaCall

MOST_BURSTS = 32  # bursts that are remembered (a choice)


class Bursts:
    """Copies of one trainer, burst by burst: a reading without any lies between two of them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._sizes: deque[int] = deque(maxlen=MOST_BURSTS)
        self._came = 0  # copies of this reading
        self._size = 0  # copies of the burst under way
        self._begun = False  # whether a reading without copies was met: what came before is a part of a burst

    def note(self, call: CudaCall) -> None:
        """Take in a call's counter."""
        if "HtoD" in call.call:
            self._came += max(0, call.count - self._counts.get(call.call, call.count))
            self._counts[call.call] = call.count

    def end_reading(self) -> None:
        """Note that all calls of the reading are in."""
        if not self._came:
            if self._size and self._begun:
                self._sizes.append(self._size)
            self._begun, self._size = True, 0
        self._size += self._came
        self._came = 0

    @property
    def copies(self) -> int | None:
        """Copies of a burst; None if bursts differ, or are too few."""
        [(size, times)] = Counter(self._sizes).most_common(1) or [(0, 0)]
        return size if len(self._sizes) >= 2 * policy.OFTEN and times >= policy.MOST * len(self._sizes) else None
