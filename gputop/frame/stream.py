"""What is said of the stream itself: where it was made, by which sources, at which cost."""

from __future__ import annotations

import msgspec

FORMAT_MAJOR = 1
FORMAT_MINOR = 2


class Header(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Said once, before the first frame: where and by what the stream was made."""

    major: int = FORMAT_MAJOR
    minor: int = FORMAT_MINOR
    gputop: str = ""
    host: str = ""
    kernel: str = ""
    boot_id: str = ""
    t_ns: int = 0
    """CLOCK_MONOTONIC when the stream began."""
    unix_ns: int = 0
    """Wall clock at the same moment."""
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

    def unix_ns_of(self, t_ns: int) -> int:
        """Wall clock at a moment of the stream, by the clocks as they stood when it began."""
        return t_ns - self.t_ns + self.unix_ns

    def t_ns_of(self, unix_ns: int) -> int:
        """The inverse of `unix_ns_of`."""
        return unix_ns - self.unix_ns + self.t_ns


class SourceState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a source can give now. ``state``: ``ok``, ``partial``, ``off`` (asked to be) or ``unavailable``."""

    name: str
    state: str
    reason: str = ""
    remedy: str = ""
    """The command or step that would mend it, empty if there is none."""
    detail: dict[str, str] = {}
    """Facts of the source, such as ``driver`` and ``cuda`` of NVML; under a field's name the reason why no sample has it."""


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A marker dropped by `gputop mark`."""

    t_ns: int
    text: str


class SelfCost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the collector itself has cost so far."""

    cpu_ns: int
    rss_bytes: int
    nvml_ns: int = 0
    nvml_calls: int = 0
    proc_ns: int = 0
    dropped: int = 0
    """Frames not sent because the reader was too slow."""
