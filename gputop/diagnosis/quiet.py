"""Stretches in which a trainer asks nothing of CUDA after some quick steps: it has turned to something else.

They show a pause where the GPU's own readings, each a mean of up to a second, do not. Of a crowd the calls are read so seldom that the time
between two readings is none by itself: one in between must have found no call.
"""

from __future__ import annotations

from collections import deque

from gputop.model.frame import CudaCall

LEAST_NS = 350_000_000  # a shorter one is the host's part of a step
STEPS = 4  # steps between two of them, at least: with fewer they belong to the steps


class Quiet:
    """Those of one trainer that reach into the window."""

    __slots__ = ("_breaks", "_counts", "_last_ns", "_made", "_still_ns")

    def __init__(self) -> None:
        self._last_ns = self._still_ns = 0
        self._counts: dict[str, int] = {}
        self._made: dict[str, int] = {}  # calls since the last stretch
        self._breaks: deque[tuple[int, int]] = deque()

    def note(self, call: CudaCall, t_ns: int) -> None:
        """One that was made, or still goes on, at ``t_ns``; the counter as it stands then."""
        before = self._counts.get(call.call)
        self._counts[call.call] = call.count
        if before == call.count and not call.inflight_ns:
            return
        if self._is_break(t_ns):
            self._breaks.append((self._last_ns, t_ns))
        if self._is_long(t_ns):
            self._made.clear()
        self._made[call.call] = self._made.get(call.call, 0) + call.count - (before or call.count)
        self._last_ns = t_ns

    def end_reading(self, t_ns: int) -> None:
        """All calls of the reading at ``t_ns`` have been noted."""
        if self._last_ns < t_ns:
            self._still_ns = t_ns

    def _is_break(self, t_ns: int) -> bool:
        """Whether the time since the last call is one, if none is made before ``t_ns``."""
        return self._last_ns > 0 and self._is_long(t_ns) and self._steps() >= STEPS

    def _is_long(self, t_ns: int) -> bool:
        return t_ns - self._last_ns >= LEAST_NS and self._still_ns > self._last_ns

    def _steps(self) -> int:
        """By the copies to the GPU, which each step makes; where it makes none, by the rarest of its calls."""
        copies = [made for call, made in self._made.items() if "HtoD" in call and made]
        return max(copies, default=min((made for made in self._made.values() if made), default=0))

    def spans(self, oldest_ns: int, now_ns: int) -> list[tuple[int, int]]:
        """When each began and ended."""
        while self._breaks and self._breaks[0][1] <= oldest_ns:
            self._breaks.popleft()
        open_now = [(self._last_ns, now_ns)] if self._is_break(now_ns) else []
        return [(start, end) for start, end in (*self._breaks, *open_now) if end > oldest_ns]
