"""The board: the latest reading of everything, folded from frames.

A frame holds only what was read in its tick; the board holds what still stands. Samples are immutable, so `Board.snapshot` is a shallow
copy and two boards may share samples. Rates, roles and states are derived elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct, field

from gputop.model.collective import newest_of
from gputop.model.driverlog import errors_by_key
from gputop.model.frame import (
    SECOND_NS,
    CgroupSample,
    Collective,
    CudaCall,
    DriverError,
    Frame,
    Gpu,
    GpuProc,
    Header,
    Host,
    LaunchRate,
    MainSamples,
    MigInstance,
    Preempt,
    Probes,
    ProcInfo,
    ProcSample,
    SchedThread,
    SelfCost,
    Serving,
    SourceState,
    ThreadCalls,
    TracedJob,
    Wakeup,
    compute_pids,
    forget_parts,
    sizes_of_contexts,
)
from gputop.model.gpu import silent_s
from gputop.model.probes import WAKEUP_KEY
from gputop.model.process import NOBODY
from gputop.model.serving import newest

wakeup_key = attrgetter(*WAKEUP_KEY)
TICK_SLACK_NS = 10_000_000  # ns by which two ticks may be closer than whole intervals: each beat wakes a little late


class GpuBoard:
    """One GPU's standing readings, by the field names of `gputop.model.frame.Gpu`.

    ``values``: field -> reading; ``read_ns``: field -> CLOCK_MONOTONIC of it; ``missing``: field -> why it has no value.
    """

    __slots__ = ("index", "missing", "read_ns", "values")

    def __init__(self, index: int) -> None:
        self.index = index
        self.values: dict[str, object] = {}
        self.read_ns: dict[str, int] = {}
        self.missing: dict[str, str] = {}

    def fold(self, gpu: Gpu) -> None:
        """Add a sample's readings. A field that the sample names in ``missing`` loses its value."""
        values, read_ns, missing, t_ns = self.values, self.read_ns, self.missing, gpu.t_ns
        for name, value in zip(_GPU_FIELDS, _gpu_values(gpu), strict=True):
            if value is not None:
                values[name] = value
                read_ns[name] = t_ns
                if name in missing:
                    del missing[name]
        if gpu.procs is not None:
            forget_parts(missing)
        if gpu.needs_reset is not None:
            missing.pop("xid", None)  # it is listened to, and none may have come
        for name, reason in gpu.missing.items():
            missing[name] = reason
            values.pop(name, None)
            read_ns.pop(name, None)

    def number(self, name: str) -> float | None:
        """Latest value of a numeric field, or None."""
        value = self.values.get(name)
        return float(value) if isinstance(value, (int, float)) else None

    def text(self, name: str) -> str:
        """Latest value of a text field, or empty."""
        value = self.values.get(name)
        return value if isinstance(value, str) else ""

    @property
    def procs(self) -> list[GpuProc]:
        """The driver's list of processes on this GPU; empty if it lists none, or cannot (see ``missing``)."""
        listed = self.values.get("procs")
        return listed if isinstance(listed, list) else []

    @property
    def instances(self) -> list[MigInstance]:
        """The MIG devices of this GPU; empty if MIG is off."""
        listed = self.values.get("mig")
        return listed if isinstance(listed, list) and self.values.get("mig_mode") else []

    @property
    def lost(self) -> bool | None:
        """True if the driver has lost the GPU; None if the driver does not answer, as while its calls hang or fail."""
        lost = self.values.get("lost")
        return None if lost is None or (not lost and self.silent_s is not None) else bool(lost)

    @property
    def silent_s(self) -> float | None:
        """Seconds for which no call to the driver about this GPU has returned; None while some do."""
        if any(name in self.values for name in _OFTEN_READ):
            return None
        return next((seconds for name in _OFTEN_READ if (seconds := silent_s(self.missing.get(name, ""))) is not None), None)

    def place(self, gpu_instance: int | None = None) -> str:
        """The GPU's name on the screen: ``3``, or ``3:1`` for the MIG device of ``gpu_instance`` (numbered as by nvidia-smi -L)."""
        device = next((one.index for one in self.instances if one.gpu_instance == gpu_instance is not None), None)
        return str(self.index) if device is None else f"{self.index}:{device}"

    @property
    def compute_pids(self) -> frozenset[int]:
        """Pids with a compute context on this GPU, by the driver's list; by its last list if it does not answer."""
        held_by = self.values.get("held_by")
        return compute_pids(self.procs) or frozenset(held_by if isinstance(held_by, list) else ())

    def copy(self) -> GpuBoard:
        """An independent copy."""
        twin = GpuBoard(self.index)
        twin.values, twin.read_ns, twin.missing = dict(self.values), dict(self.read_ns), dict(self.missing)
        return twin


_OFTEN_READ = ("util_pct", "mem_used_bytes", "power_w", "sm_clock_mhz", "throttle_mask")  # each tick; every GPU has some
_GPU_FIELDS = tuple(f for f in Gpu.__struct_fields__ if f not in ("index", "t_ns", "missing"))
_gpu_values = attrgetter(*_GPU_FIELDS)
_HOST_FIELDS = tuple(f for f in Host.__struct_fields__ if f not in ("t_ns", "cgroups"))


class Board(Struct):
    """All readings that stand at ``t_ns`` (CLOCK_MONOTONIC)."""

    header: Header = field(default_factory=Header)
    seq: int = -1
    t_ns: int = 0
    gpus: dict[int, GpuBoard] = field(default_factory=dict)
    infos: dict[int, ProcInfo] = field(default_factory=dict)
    procs: dict[int, ProcSample] = field(default_factory=dict)
    host: dict[str, object] = field(default_factory=dict)
    host_read_ns: dict[str, int] = field(default_factory=dict)
    cgroups: dict[str, CgroupSample] = field(default_factory=dict)
    sources: dict[str, SourceState] = field(default_factory=dict)
    threads: dict[int, SchedThread] = field(default_factory=dict)  # tid -> counters of the sched probe
    preempts: dict[tuple[int, int], Preempt] = field(default_factory=dict)  # (victim tid, culprit tid) -> how long the culprit ran
    wakeups: dict[Any, Wakeup] = field(default_factory=dict)  # `WAKEUP_KEY` -> wake-ups
    calls: dict[tuple[int, str], CudaCall] = field(default_factory=dict)  # (pid, CUDA function) -> counters
    launches: dict[int, LaunchRate] = field(default_factory=dict)  # pid -> the last measured launch rate
    thread_calls: dict[tuple[int, str], ThreadCalls] = field(default_factory=dict)  # (tid, CUDA function) -> counters
    probed_ns: int = 0  # when the probes were last read (CLOCK_MONOTONIC); 0: never
    switch_share: float = 1.0  # `Probes.share`
    cost: SelfCost | None = None
    sampled: dict[int, MainSamples] = field(default_factory=dict)  # pid -> samples of its main thread
    servings: dict[tuple[int, str, str, str], Serving] = field(default_factory=dict)  # `SERVING_KEY` -> the server's newest page
    collectives: dict[tuple[int, str, str], Collective] = field(default_factory=dict)  # `COLLECTIVE_KEY` -> what its rank wrote last
    driver_errors: dict[tuple[str, str, int, int | None], DriverError] = field(default_factory=dict)  # `DRIVER_ERROR_KEY` -> the latest

    traces: dict[int, tuple[int, TracedJob]] = field(default_factory=dict)  # pid -> (time, its newest trace); never changed in place

    def with_header(self, header: Header) -> Board:
        """The board after a header: this one if the header only corrects the clocks of the same stream, else an empty one."""
        if not header.repeats(self.header):
            return Board(header=header)
        self.header = header
        return self

    def fold(self, frame: Frame) -> None:
        """Add a frame's readings; a key frame replaces all others."""
        if frame.key:
            before = [getattr(self, name) for name in _RESTATED]
            self._clear()
            self._take(frame)
            self._reuse_equal(before)
        else:
            self._take(frame)
        for info in frame.infos:
            if self.infos.get(info.pid) is info:
                self.infos[info.pid] = like(info, self.infos.get(info.ppid))

    @property
    def compute_pids(self) -> frozenset[int]:
        """Pids with a compute context on any GPU."""
        return frozenset().union(*(gpu.compute_pids for gpu in self.gpus.values()))

    @property
    def contexts(self) -> dict[int, dict[int, int]]:
        """pid -> GPU index -> size class of the context, see `sizes_of_contexts`."""
        return sizes_of_contexts({index: gpu.procs for index, gpu in self.gpus.items()})

    def snapshot(self) -> Board:
        """A shallow copy that later folds do not change."""
        tables = {name: dict(getattr(self, name)) for name in _TABLES}
        tables["gpus"] = {index: gpu.copy() for index, gpu in self.gpus.items()}
        return msgspec.structs.replace(self, **tables)

    def counters(self) -> Board:
        """A snapshot of the GPUs, processes and threads only: the older reading for rates.

        The probe's counters of single-threaded processes are left out: the process has the same counters, and those of a thousand processes
        take a megabyte.
        """
        gpus = {i: g.copy() for i, g in self.gpus.items()}
        threads = {tid: thread for tid, thread in self.threads.items() if tid != thread.pid or not self._is_alone(tid)}
        return Board(self.header, self.seq, self.t_ns, gpus, procs=dict(self.procs), threads=threads, probed_ns=self.probed_ns)

    def _is_alone(self, pid: int) -> bool:
        """True if the process has one thread: the counters are in its `ProcSample`."""
        proc = self.procs.get(pid)
        return proc is not None and proc.num_threads == 1 and not proc.threads and proc.vol is not None

    def _take(self, frame: Frame) -> None:
        self.seq, self.t_ns = frame.seq, frame.t_ns
        for pid in frame.gone:
            self.infos.pop(pid, None)
            self.procs.pop(pid, None)
            self.sampled.pop(pid, None)
        if frame.gone and self.servings:
            self.servings = {key: one for key, one in self.servings.items() if one.pid not in frame.gone}
        if frame.gone and self.collectives:
            self.collectives = {key: one for key, one in self.collectives.items() if one.pid not in frame.gone}
        for info in frame.infos:
            self.infos[info.pid] = info
        for proc in frame.procs:
            self.procs[proc.pid] = proc
        for gpu in frame.gpus:
            if gpu.index not in self.gpus:
                self.gpus[gpu.index] = GpuBoard(gpu.index)
            self.gpus[gpu.index].fold(gpu)
        for source in frame.sources:
            self.sources[source.name] = source
        if frame.host is not None:
            self._fold_host(frame.host)
        if frame.probes is not None:
            self._fold_probes(frame.probes)
        for sampled in frame.sampled:
            self.sampled[sampled.pid] = sampled
        if frame.servings:
            self.servings = newest((*self.servings.values(), *frame.servings))
        if frame.collectives:
            self.collectives = self.collectives | newest_of(frame.collectives)
        if frame.driver_errors:
            self.driver_errors = self.driver_errors | errors_by_key(frame.driver_errors)
        self.cost = frame.cost or self.cost
        if frame.traces or (frame.gone and self.traces):
            self.add_traces(frame.t_ns, frame.traces, frame.gone)
        if max(len(getattr(self, name)) for name in _BOUNDED) > MOST_ENTRIES:
            self._clear()

    def add_traces(self, t_ns: int, traces: Iterable[TracedJob], gone: Sequence[int] = ()) -> None:
        """Add traces of torch.profiler; only the newest `_MOST_TRACES` are kept."""
        left = [(pid, one) for pid, one in self.traces.items() if pid not in gone]
        self.traces = dict([*left, *((job.pid, (t_ns, job)) for job in traces if job.reading is not None)][-_MOST_TRACES:])

    def _clear(self) -> None:
        """Empty all tables: a key frame restates everything, so what it leaves out has ended."""
        fresh = Board(header=self.header)
        for name in _TABLES:
            setattr(self, name, getattr(fresh, name))

    def _reuse_equal(self, before: list[dict[Any, Any]]) -> None:
        """Keep the old object where a key frame restates an equal one: snapshots hold the old one, and a second would take memory."""
        for name, old in zip(_RESTATED, before, strict=True):
            table = getattr(self, name)
            for key, sample in table.items():
                stood = old.get(key)
                if stood == sample:
                    table[key] = stood

    def _fold_host(self, host: Host) -> None:
        for name in _HOST_FIELDS:
            value = getattr(host, name)
            if value is not None:
                self.host[name] = value
                self.host_read_ns[name] = host.t_ns
        if host.cgroups is not None:
            self.cgroups = {sample.path: sample for sample in host.cgroups}

    def _fold_probes(self, probes: Probes) -> None:
        for thread in probes.threads:
            self.threads[thread.tid] = thread
        for preempt in probes.preempts:
            self.preempts[preempt.victim_tid, preempt.culprit_tid] = preempt
        for pair in probes.forgotten:
            self.preempts.pop((pair & 0xFFFFFFFF, pair >> 32), None)
        for wakeup in probes.wakeups:
            self.wakeups[wakeup_key(wakeup)] = wakeup
        for call in probes.calls:
            self.calls[call.pid, call.call] = call
        for own in probes.thread_calls:
            self.thread_calls[own.tid, own.call] = own
        if probes.launches:
            self.launches = {rate.pid: rate for rate in probes.launches}
        if probes.gone:
            self._prune_threads(frozenset(probes.gone))
        self.probed_ns, self.switch_share = probes.t_ns, probes.share

    def _prune_threads(self, gone: frozenset[int]) -> None:
        for tid in gone:
            self.threads.pop(tid, None)
        self.preempts = {k: v for k, v in self.preempts.items() if not gone.intersection(k)}
        self.wakeups = {k: v for k, v in self.wakeups.items() if not gone.intersection(k[:2])}
        self.thread_calls = {k: v for k, v in self.thread_calls.items() if k[0] not in gone}


_TABLES = (
    "gpus", "infos", "procs", "host", "host_read_ns", "cgroups", "sources", "threads", "preempts", "wakeups", "calls", "launches",
    "sampled", "thread_calls", "servings", "collectives", "driver_errors",
)  # fmt: skip
_BOUNDED = ("procs", "infos", "threads", "preempts", "wakeups", "calls", "collectives", "driver_errors")
_MOST_TRACES = 64  # 5 KB each: the ranks of a host (a choice)
MOST_ENTRIES = 1 << 18  # entries per table between two key frames: no machine has more; a stream with more is made up
_RESTATED = ("infos", "procs", "threads", "preempts", "wakeups", "calls", "thread_calls")  # a key frame mostly repeats their entries
_INHERITED = ("user", "comm", "cmdline", "exe", "cgroup", "cpus_allowed", "env", "libs", "threads", "other_ends", "read_by")


def like(info: ProcInfo, parent: ProcInfo | None) -> ProcInfo:
    """``info`` with those values that equal the parent's, or are empty, replaced by the shared object.

    Workers are forked by the dozen, and these values are most of their memory; the empty lists of a thousand processes take half a MB.
    Both the board and a live stream's decoder (`gputop.recording.chunks.Told`) call this: a decoder that did not would hold second copies,
    and of a recording the board alone remembers processes, whose identities would take a third more.
    """
    same = {}
    for name in _INHERITED:
        own = getattr(info, name)
        its = getattr(parent if own else NOBODY, name, own)
        if its is not own and its == own:
            same[name] = its
    return msgspec.structs.replace(info, **same) if same else info


class LastSeconds:
    """Boards of the last two seconds, one a second (`Board.counters`): the older readings for rates on the screen."""

    def __init__(self) -> None:
        self._boards: deque[Board] = deque(maxlen=2)

    def add(self, board: Board) -> None:
        """Keep a copy of the board if a second has passed since the last one."""
        if not self._boards or board.t_ns - self._boards[-1].t_ns >= SECOND_NS - TICK_SLACK_NS:
            self._boards.append(board.counters())

    def before(self, board: Board, span_ns: int) -> Board:
        """The newest board that is at least ``span_ns`` older than ``board``, else the oldest held, else ``board`` itself."""
        older = next((one for one in reversed(self._boards) if board.t_ns - one.t_ns >= span_ns - TICK_SLACK_NS), None)
        return older or (self._boards[0] if self._boards else board)
