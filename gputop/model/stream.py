"""The stream itself: its origin, sources and cost; markers; the bound on the lists of a frame."""

from __future__ import annotations

import re
from bisect import bisect_right

import msgspec

FORMAT_MAJOR, FORMAT_MINOR = 2, 0  # of a stream and a recording, see `gputop.recording.format`
MOST_IN_FRAME = 1 << 16  # entries per list of a frame; Linux allows 32,768 processes by default
BOUNDED = msgspec.Meta(max_length=MOST_IN_FRAME)  # a reader refuses longer lists: any program may have written the stream

_STEP = re.compile(r"\b(?:global[ _])?(?:step|iter|iteration)\W{0,3}(\d{1,12})\b", re.ASCII | re.IGNORECASE)


class Header(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Comes before the first frame: where and by which program the stream was made.

    Comes again when a clock has jumped, with `unix_ns` and `slept` corrected.
    """

    major: int = FORMAT_MAJOR
    minor: int = FORMAT_MINOR
    gputop: str = ""
    host: str = ""
    kernel: str = ""
    boot_id: str = ""
    t_ns: int = 0  # CLOCK_MONOTONIC when the stream began
    unix_ns: int = 0  # wall clock at ``t_ns``, as later corrected
    interval_ns: int = 100_000_000
    clock_tick_hz: int = 100
    cpus: int = 1
    memory_bytes: int = 0
    collector_pid: int = 0
    pid_namespace: int = 0  # inode of the collector's pid namespace (/proc/self/ns/pid)
    simulated: bool = False  # true when the GPU numbers come from `gputop demo`; the screen then shows SIMULATED
    machine: str = ""  # ``uname -m``: the numbers of system calls depend on it
    autogroup: bool = False  # the scheduler divides CPU time between sessions first (/proc/sys/kernel/sched_autogroup_enabled)
    slept: tuple[tuple[int, int], ...] = ()
    """(CLOCK_MONOTONIC, ns that the machine had slept since boot) at the begin of the stream and at each waking."""

    def slept_ns_at(self, t_ns: int) -> int:
        """CLOCK_BOOTTIME minus CLOCK_MONOTONIC at ``t_ns``; 0 if not recorded."""
        i = bisect_right(self.slept, t_ns, key=lambda entry: entry[0])
        return self.slept[max(0, i - 1)][1] if self.slept else 0

    def unix_ns_of(self, t_ns: int) -> int:
        """Wall clock (Unix ns) at the CLOCK_MONOTONIC moment ``t_ns``."""
        return self.unix_ns + t_ns - self.t_ns + self.slept_ns_at(t_ns) - self.slept_ns_at(self.t_ns)

    def t_ns_of(self, unix_ns: int) -> int:
        """The inverse of `unix_ns_of`. For a time during a sleep: the moment of waking."""
        awake_ns = unix_ns - self.unix_ns + self.t_ns + self.slept_ns_at(self.t_ns)
        t_ns = awake_ns - (self.slept[0][1] if self.slept else 0)
        for woke_ns, slept_ns in self.slept:
            if t_ns > woke_ns:
                t_ns = max(woke_ns, awake_ns - slept_ns)
        return t_ns

    def dated(self, later: Header) -> Header:
        """This header with the clocks of a later header of the same machine."""
        slept = tuple(sorted({*self.slept, *later.slept}))
        later = msgspec.structs.replace(later, slept=slept)
        return msgspec.structs.replace(self, unix_ns=later.unix_ns_of(self.t_ns), slept=slept)

    def repeats(self, known: Header) -> bool:
        """True if this header is ``known`` with corrected clocks, and not that of another stream."""
        return self == known.dated(self)


class SourceState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Capability of a source now. ``state``: ``ok``, ``partial``, ``off`` (by a flag) or ``unavailable``."""

    name: str
    state: str
    reason: str = ""
    remedy: str = ""  # the command or step that fixes it, empty if there is none
    detail: dict[str, str] = {}  # facts, such as NVML's ``driver`` and ``cuda``; a field's name -> why no sample has it


HIDDEN = {
    "the machine's other processes are hidden: this pid namespace is a container's own": "start the container with --pid=host",
    "of processes outside this container no I/O, libraries, waits: no CAP_SYS_PTRACE": "start the container with --cap-add SYS_PTRACE",
    "other users' processes are hidden: /proc is mounted with hidepid": "run gputop as root to see them",
    "of other users' processes no I/O, libraries, waits": "run gputop as root to see them",
}
"""Why a host's processes are not all seen -> what to do. A verdict about it takes both from here, whatever else the stream has."""
NAMESPACE, CAPABILITY, HIDEPID, OTHERS = HIDDEN
NO_DATA = "no data for "  # prefix of the marker at the first frame after a gap; the gap's seconds and reason follow
NCCL_SAYS = "NCCL: "  # prefix of the marker of a job that hangs: what NCCL said of its ranks
TRACE_OF = "trace of "  # prefix of the marker of a trace of torch.profiler: its process and file follow
FLIGHT_SAYS = "flight recorder: "  # prefix of the marker of ranks that hang: what torch's dumps show of them
EXPERIMENT_BEGINS, EXPERIMENT_ENDED = "experiment begins", "experiment"  # prefixes of the markers of `gputop prove`; the second tells how


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A marker: dropped by `gputop mark`, or set by a recorder after a gap."""

    t_ns: int
    text: str

    @classmethod
    def of_gap(cls, since_ns: int, t_ns: int, reason: str) -> Mark:
        """The marker at the frame of ``t_ns``, which follows the frame of ``since_ns``."""
        return cls(t_ns, f"{NO_DATA}{(t_ns - since_ns) / 1e9:.1f} s: {reason}")

    @property
    def gap_reason(self) -> str:
        """Why there are no frames before it; empty for a marker of `gputop mark`."""
        return self.text.partition(" s: ")[2] if self.text.startswith(NO_DATA) else ""

    @property
    def step(self) -> int | None:
        """The number of a job's step, of a marker that counts these: ``step 1200``, ``epoch 3, iteration: 40``; None for others."""
        found = _STEP.search(self.text)
        return None if found is None or self.gap_reason else int(found[1])

    @property
    def nccl(self) -> str:
        """NCCL's report on a job that hung: ``rank 17 of 32: launched 6649 of 6650 AllReduce``; empty for other markers."""
        return self.text.removeprefix(NCCL_SAYS) if self.text.startswith(NCCL_SAYS) else ""

    @property
    def is_trace(self) -> bool:
        """True if it names a trace of torch.profiler, which may stand in its frame."""
        return self.text.startswith(TRACE_OF)

    @property
    def flight(self) -> str:
        """Answer of torch's flight recorder on ranks that hung: ``rank 1 has not come to all_reduce 6``; empty for other markers."""
        return self.text.removeprefix(FLIGHT_SAYS) if self.text.startswith(FLIGHT_SAYS) else ""

    @property
    def experiment(self) -> str:
        """Outcome of an experiment: ``proved, 182 → 311 steps/min, 1.7×, 1.6 to 1.8: fluent-bit (903) to idle priority``; empty for other
        markers."""
        is_end = self.text.startswith(f"{EXPERIMENT_ENDED} ") and not self.text.startswith(EXPERIMENT_BEGINS)
        return self.text.removeprefix(f"{EXPERIMENT_ENDED} ") if is_end else ""


class SelfCost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Cost of the collector itself since it started."""

    cpu_ns: int
    rss_bytes: int
    nvml_ns: int = 0
    nvml_calls: int = 0
    proc_ns: int = 0
    dropped: int = 0  # frames that were not sent because the reader was too slow
