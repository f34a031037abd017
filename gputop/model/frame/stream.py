"""What is said of the stream itself: where it was made, by which sources, at which cost."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

FORMAT_MAJOR = 1
FORMAT_MINOR = 2


class Header(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Said before the first frame: where and by what the stream was made. Said again when a clock has jumped, with `unix_ns` and `slept` as
    they are known by then."""

    major: int = FORMAT_MAJOR
    minor: int = FORMAT_MINOR
    gputop: str = ""
    host: str = ""
    kernel: str = ""
    boot_id: str = ""
    t_ns: int = 0
    """CLOCK_MONOTONIC when the stream began."""
    unix_ns: int = 0
    """Wall clock at the same moment, as it was last set."""
    interval_ns: int = 100_000_000
    clock_tick_hz: int = 100
    cpus: int = 1
    memory_bytes: int = 0
    collector_pid: int = 0
    pid_namespace: int = 0
    """Inode of the collector's pid namespace (/proc/self/ns/pid)."""
    simulated: bool = False
    """True when the GPU numbers come from `gputop demo`; the screen then says SIMULATED."""
    machine: str = ""
    """``uname -m`` there, for system calls are told by their numbers."""
    autogroup: bool = False
    """CPU time is divided between sessions first (/proc/sys/kernel/sched_autogroup_enabled)."""
    slept: tuple[tuple[int, int], ...] = ()
    """(CLOCK_MONOTONIC, ns that the machine had slept since it booted), as the stream began and whenever the machine woke."""

    def slept_ns_at(self, t_ns: int) -> int:
        """How far CLOCK_BOOTTIME was ahead of CLOCK_MONOTONIC; 0 where it is not told."""
        i = bisect_right(self.slept, t_ns, key=lambda entry: entry[0])
        return self.slept[max(0, i - 1)][1] if self.slept else 0

    def unix_ns_of(self, t_ns: int) -> int:
        """Wall clock at a moment of the stream."""
        return self.unix_ns + t_ns - self.t_ns + self.slept_ns_at(t_ns) - self.slept_ns_at(self.t_ns)

    def t_ns_of(self, unix_ns: int) -> int:
        """The inverse of `unix_ns_of`; of a time that was slept through the moment of waking."""
        awake_ns = unix_ns - self.unix_ns + self.t_ns + self.slept_ns_at(self.t_ns)
        t_ns = awake_ns - (self.slept[0][1] if self.slept else 0)
        for woke_ns, slept_ns in self.slept:
            if t_ns > woke_ns:
                t_ns = max(woke_ns, awake_ns - slept_ns)
        return t_ns

    def dated(self, later: Header) -> Header:
        """This one, with the clocks as a later header of the same machine knows them."""
        slept = tuple(sorted({*self.slept, *later.slept}))
        later = msgspec.structs.replace(later, slept=slept)
        return msgspec.structs.replace(self, unix_ns=later.unix_ns_of(self.t_ns), slept=slept)

    def retells(self, known: Header) -> bool:
        """Whether it is ``known`` said again, by the clocks as they are now, and not of another stream."""
        return self == known.dated(self)


class SourceState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a source can give now. ``state``: ``ok``, ``partial``, ``off`` (asked to be) or ``unavailable``."""

    name: str
    state: str
    reason: str = ""
    remedy: str = ""
    """The command or step that would mend it, empty if there is none."""
    detail: dict[str, str] = {}
    """Facts of the source, such as ``driver`` and ``cuda`` of NVML; under a field's name the reason why no sample has it."""


NO_DATA = "no data for "
"""Begins the text of a marker at the first frame behind a gap; its seconds and its reason follow."""


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A marker dropped by `gputop mark`, or set by a recorder behind a gap."""

    t_ns: int
    text: str

    @classmethod
    def of_gap(cls, since_ns: int, t_ns: int, reason: str) -> Mark:
        """What stands at the frame of ``t_ns`` where that of ``since_ns`` is the one before it."""
        return cls(t_ns, f"{NO_DATA}{(t_ns - since_ns) / 1e9:.1f} s: {reason}")

    @property
    def gap_reason(self) -> str:
        """Why there is nothing before it; empty for a marker of the job."""
        return self.text.partition(" s: ")[2] if self.text.startswith(NO_DATA) else ""


class SelfCost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the collector itself has cost so far."""

    cpu_ns: int
    rss_bytes: int
    nvml_ns: int = 0
    nvml_calls: int = 0
    proc_ns: int = 0
    dropped: int = 0
    """Frames not sent because the reader was too slow."""
