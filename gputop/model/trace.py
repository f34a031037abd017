"""A trace of torch.profiler, read: what a recording keeps of it. `gputop.traces` takes and reads traces."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gputop.model.ranges import Bytes, Count, Ns, Percent, Pid, Seconds

MOST_TRACES = 64  # in a frame: the ranks of a host (a choice)
BY_USER, BY_GPUTOP = "user", "gputop"
CHECKED = ("loader", "loading", "sync", "copy")
"""Parts of the main thread's time that are compared; ``loading``: without workers."""


class Named(Struct, frozen=True):
    """A kernel, an operator, a collective, a call: how often, how long in all (ns), and its share of the trace's time (%)."""

    name: str
    count: Count
    total_ns: Ns
    share_pct: Percent
    mean_ns: Ns


class Copies(Struct, frozen=True):
    """Copies of one direction (``HtoD``…) and memory (``pageable``, ``pinned``, ``device``; empty where the trace does not have it)."""

    direction: str
    memory: str
    count: Count
    bytes: Bytes
    total_ns: Ns
    share_pct: Percent


class Idle(Struct, frozen=True):
    """Idle time of the GPU by its reason, % of the trace's time: ``loader`` the host waited for data, ``sync`` the host had waited for the
    GPU and had nothing queued, ``copy`` it copied, ``launch`` from the call to the kernel's start, ``host`` it did something else."""

    loader_pct: Percent = 0.0
    sync_pct: Percent = 0.0
    copy_pct: Percent = 0.0
    launch_pct: Percent = 0.0
    host_pct: Percent = 0.0

    @property
    def total_pct(self) -> float:
        """All idle time."""
        return self.loader_pct + self.sync_pct + self.copy_pct + self.launch_pct + self.host_pct


IDLE_WORDS = {
    "loader_pct": "the host waited for data", "sync_pct": "the host had waited for it", "copy_pct": "the host copied",
    "launch_pct": "launches were under way", "host_pct": "the host did something else",
}  # fmt: skip
"""Field of `Idle` -> what happened meanwhile; "it" is the GPU."""


class Launched(Struct, frozen=True):
    """Kernels of a trace by count. ``fusible``: so many fewer there would be if each run of element-wise and reducing kernels were one
    kernel, as torch.compile may make it. ``graphs``: launches of CUDA graphs."""

    kernels: Count = 0
    fusible: Count = 0
    graphs: Count = 0


class TraceReading(Struct, frozen=True):
    """One trace, read. Times in ns, shares in % of ``span_ns``."""

    file: str
    pid: Pid
    bytes: Bytes
    events: Count
    start_unix_ns: Ns | None  # None where its clock does not count from 1970
    span_ns: Ns
    steps: Count
    gpu_busy_pct: Percent | None
    idle: Idle | None
    kernels: list[Named]
    operators: list[Named]  # of the main thread, without what they call
    exposed: list[Named]  # communication during which nothing was computed
    copies: list[Copies]
    sync_calls: list[Named]  # by the operator that waited for the GPU
    loader_wait_pct: Percent
    loading_pct: Percent  # the main thread loaded data itself, without workers
    optimizer_pct: Percent
    sync_pct: Percent | None
    copy_pct: Percent | None
    launches: list[Named]  # by the Python function that launched; empty without stacks
    missing: dict[str, str]  # field -> why it has no value
    left_out: str  # what of the file could not be read, in words
    launched: Launched | None = None  # None: no kernel in the trace
    sync_lines: list[Named] = []  # by the Python function that waited for the GPU; empty without stacks


class TraceCheck(Struct, frozen=True):
    """One share of the main thread's time, by torch's own trace and by gputop from outside. ``agrees``: None where gputop has none,
    or where waits for a CPU, which torch does not see, are as long as what they differ by."""

    part: str  # a word of `CHECKED`
    trace_pct: Percent
    gputop_pct: Percent | None
    agrees: bool | None


class TracedJob(Struct, frozen=True):
    """One process that was asked. ``reading``: None without a trace, ``error`` has the reason."""

    pid: Pid
    name: str
    took_s: Seconds
    reading: TraceReading | None
    checks: Annotated[list[TraceCheck], Meta(max_length=8)]
    error: str | None = None
    by: str = BY_USER  # who asked: ``user``, or ``gputop`` by itself
