"""Breaks of a GPU: after some steps of full work, nothing for as long as some steps take.

A GPU whose every step waits is never used in full for so long, however its readings fall. Those on the edge of a break are partly busy.
In an evaluation it may be given a little work all the time: it has *sunk*.
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

FULL, NOTHING, LITTLE = 0.85, 0.05, 0.2  # utilization of a GPU that works without a pause, of one at rest, and of one that has sunk
BEFORE_NS, LOST_NS, STILL_NS, SUNK_NS = 450_000_000, 300_000_000, 150_000_000, 700_000_000
"""Full work before a break, what is lost in one, and how much of that without any work at all, or with little."""
_GAP_NS = 1_000_000_000


class _Break(Struct):
    since_ns: int
    until_ns: int
    lost_ns: float = 0.0
    resting_ns: int = 0
    still_ns: int = 0  # the longest of it at one go; a step that waits shows many short ones, one after each kernel
    sunk_ns: int = 0

    @property
    def counts(self) -> bool:
        return self.lost_ns >= LOST_NS and self.still_ns >= STILL_NS

    @property
    def has_sunk(self) -> bool:
        return self.sunk_ns >= SUNK_NS

    def lost_after(self, t_ns: int) -> float:
        return self.lost_ns * (self.until_ns - max(self.since_ns, t_ns)) / max(1, self.until_ns - self.since_ns)


class Breaks:
    """Those of one GPU that reach into the window."""

    __slots__ = ("_breaks", "_full_ns", "_last_ns", "_open")

    def __init__(self) -> None:
        self._last_ns = self._full_ns = 0
        self._open: _Break | None = None
        self._breaks: deque[_Break] = deque()

    def note(self, util: float, t_ns: int) -> None:
        """A reading, 0..1, of the time since the one before."""
        before, self._last_ns = self._last_ns or t_ns, t_ns
        ns = t_ns - before
        if not 0 <= ns <= _GAP_NS:
            self._full_ns, self._open = 0, None
        elif util >= FULL:
            self._close()
            self._full_ns += ns
        else:
            self._lose(util, before, ns)

    def _close(self) -> None:
        ended, self._open = self._open, None
        if ended is not None:
            self._breaks.append(ended)

    def _lose(self, util: float, since_ns: int, ns: int) -> None:
        if self._open is None and self._full_ns >= BEFORE_NS:
            self._open = _Break(since_ns, since_ns)
        self._full_ns = 0
        if self._open is not None:
            self._open.until_ns += ns
            self._open.lost_ns += (1.0 - util) * ns
            self._open.resting_ns = self._open.resting_ns + ns if util < NOTHING else 0
            self._open.still_ns = max(self._open.still_ns, self._open.resting_ns)
            self._open.sunk_ns += ns if util < LITTLE else 0

    def lost_s(self, oldest_ns: int) -> float:
        """What they cost since then."""
        return sum(one.lost_after(oldest_ns) for one in self._since(oldest_ns) if one.counts) / 1e9

    def dips_s(self, oldest_ns: int) -> float:
        """The same of all, also of those too short to tell by themselves."""
        return sum(one.lost_after(oldest_ns) for one in self._since(oldest_ns)) / 1e9

    def sunk_s(self, oldest_ns: int) -> float:
        """The same of those in which it had little work for a while."""
        return sum(one.lost_after(oldest_ns) for one in self._since(oldest_ns) if one.has_sunk) / 1e9

    def spans(self, oldest_ns: int) -> list[tuple[int, int]]:
        """When each of both began and ended."""
        return [(one.since_ns, one.until_ns) for one in self._since(oldest_ns) if one.counts or one.has_sunk]

    def _since(self, oldest_ns: int) -> list[_Break]:
        while self._breaks and self._breaks[0].until_ns <= oldest_ns:
            self._breaks.popleft()
        return [*self._breaks, self._open] if self._open is not None and self._open.until_ns > oldest_ns else list(self._breaks)
