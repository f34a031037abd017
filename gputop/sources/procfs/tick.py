"""One tick as the readers of processes and threads see it."""

from __future__ import annotations

from msgspec import Struct

from gputop.sources.procfs.locks import Locks

STATUSES = 64
"""Most status texts of secondary threads read in one tick (9 us each); beyond it their state and switches are None."""


class Tick(Struct):
    """``number`` counts ticks without gaps, so that a rotation over ticks leaves nobody out."""

    number: int
    t_ns: int
    key: bool
    per_second: int
    """Ticks in about a second, at least 1."""
    locks: Locks
    boot_ticks: int = 0
    """CLOCK_BOOTTIME in clock ticks, as processes' start times are."""
    delays: bool = True
    """Whether the kernel accounts delays (kernel.task_delayacct)."""
    statuses: int = STATUSES

    def passes(self, every: int, slot: int, since: int) -> bool:
        """Whether something done in every so many ticks, evenly over the ``slot``s, became due in the last ``since`` ticks."""
        return (self.number + slot) % every < since

    def looks_at(self, slot: int, since: int, per_s: int) -> bool:
        """The same of what is done ``per_s`` times a second, and in key frames."""
        return self.key or self.passes(max(1, self.per_second // per_s), slot, since)
