"""What the sched probe tells of a process's threads, kept until a row of the process asks: the two come in ticks of their own."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable


class Told:
    """Numbers by pid and tick."""

    def __init__(self, together: Callable[[Iterable[int]], int]) -> None:
        """``together`` makes one of several: max, or sum."""
        self._together = together
        self._pending: dict[int, dict[int, int]] = {}
        self.since: dict[int, int] = {}
        """The tick in which each was first told of."""

    def learn(self, since_ns: int, told: Iterable[tuple[int, int, int | None]]) -> None:
        """Take over (tick, pid, number); those before ``since_ns`` that nobody asked for are forgotten."""
        self._pending = {pid: ticks for pid, ticks in self._pending.items() if ticks and max(ticks) >= since_ns}
        for tick, pid, number in told:
            self.since.setdefault(pid, tick)
            ticks = self._pending.setdefault(pid, {})
            ticks[tick] = self._together((number or 0, ticks.get(tick, 0)))

    def take(self, tick: int, pid: int) -> int | None:
        """That of all ticks up to this one since the process was asked for before, None where nothing was told."""
        pending = self._pending.get(pid)
        ticks = [at for at in pending if at <= tick] if pending else ()
        return self._together(map(pending.pop, ticks)) if pending and ticks else None
