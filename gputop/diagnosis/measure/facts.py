"""What is known about one window of time: what the verdicts judge. Shares are 0..1 of the window, times seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from functools import cached_property
from math import inf
from typing import Any

from msgspec import Struct, field

from gputop.diagnosis.measure import waits
from gputop.diagnosis.measure.losses import Loss
from gputop.diagnosis.measure.pauses import Repeated, Span
from gputop.diagnosis.measure.proc import ProcFacts
from gputop.diagnosis.measure.wakes import ThreadTime, Wake
from gputop.findings import policy
from gputop.findings.verdict import Step
from gputop.model.board import GpuBoard
from gputop.model.frame import MigInstance, ProcInfo, ReadLimit, link_bytes_per_s


class GpuFacts(Struct, frozen=True):
    """One GPU over the window."""

    index: int
    util: float | None
    """Share of the time in which some kernel ran, as GPM tells; else the mean of NVML's utilization, which counts copies, too."""
    sm_active: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    sm_clock_free_mhz: float | None = None
    """The highest it has worked at while nothing of `measure.intensity` held it down; None where that was not seen."""
    throttle_mask: int = 0  # bits set in at least half of the window's samples
    temp_c: float | None = None
    pcie_bytes_per_s: float | None = None  # both ways
    pcie_back_bytes_per_s: float | None = None  # of these, what it sends
    pcie_gen: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pids: frozenset[int] = frozenset()
    stretch_s: float = 0.0  # the longest time in which it did nothing at all that reaches into the window, if steady work came before it
    breaks_s: float = 0.0  # what `pauses.Breaks` cost in the window
    sunk_s: float = 0.0  # what those cost in which it had little work for a while
    dips_s: float = 0.0  # what all cost that came after steady work, also those too short to be breaks by themselves
    pauses: tuple[Span, ...] = ()  # these breaks, and stretches as long as one
    worked_ns: int = 0  # when it last worked; 0 where it has not since the engine began
    unmeasurable: bool = False  # the driver gives no utilization for it
    loss: Loss | None = None  # why it is lost, or must be reset
    util_now: float | None = None  # the latest reading
    idle_s: float = 0.0  # for how long, up to now, it has done nothing at all (under 2 % of the time)
    makes_steps: bool = False
    """It works again and again, however little: it has begun to `policy.OFTEN` within `policy.STEPS_NS`, or for `policy.STEADY_NS` no
    reading was without any work."""
    split: bool = False  # MIG is on: what it does as a whole is nobody's
    instance: int | None = None  # of a part of such a one: its GPU instance. See `measure.facts`.
    name: str = ""  # as people know it: ``3``, of a part ``3:1``

    @property
    def place(self) -> tuple[int, int | None]:
        """What two that share it have in common."""
        return self.index, self.instance

    @property
    def gone(self) -> bool:
        """Nobody can work on it any more."""
        return self.loss is not None and not self.loss.works

    @property
    def lost(self) -> float | None:
        """Share of the window in which it did no work."""
        return 1.0 if self.gone else None if self.util is None else 1.0 - self.util

    @property
    def link_bytes_per_s(self) -> float | None:
        """What its link carries one way as it now runs; None where that is not told."""
        return link_bytes_per_s(int(self.pcie_gen or 0), int(self.pcie_width or 0))


class CallFacts(Struct, frozen=True):
    """CUDA calls of a trainer over the window, where probed."""

    seconds: float
    sync: float = 0.0  # share of the window inside synchronize calls
    sync_per_s: float = 0.0
    most_syncs_per_s: float = 0.0  # of the one made most often: an ``item()`` makes two, a copy that waits and a synchronize
    waits_per_s: float = 0.0  # of these, and of copies other than to the GPU: as many as their time would be if all were equally long
    copy: float = 0.0
    slow: float = 0.0  # of ``sync``: in copies, which may have waited for kernels or not
    slow_bytes_per_s: float = 0.0  # of copies that are in ``sync`` as a whole
    copy_per_s: float = 0.0
    rates: tuple[float, ...] = ()  # of each call but copies to the GPU, per second
    to_gpu_per_s: float = 0.0  # copies that say by their name that they go to the GPU
    to_gpu_bytes_per_s: float = 0.0  # of these; and of copies that say that they come from there
    from_gpu_bytes_per_s: float = 0.0
    copy_bytes_per_s: float | None = None
    counted_share: float = 1.0  # of the time, of the call that was counted in the least of it

    @property
    def counted_in(self) -> str:
        """How much of the time calls were counted in, to be added to what was counted; empty if all of it."""
        if self.counted_share >= 1.0:
            return ""
        return f", counted in {max(0.1, 100 * self.counted_share):.{0 if self.counted_share >= 0.01 else 1}f} % of the time"


class SampledFacts(Struct, frozen=True):
    """What a trainer's main thread was met at while it ran, over the window, where its calls are not probed."""

    sync: float  # share of the window in which it spun in waits for the GPU
    copy: float
    launch: float
    waits_per_s: float  # of these waits, estimated
    seen_per_s: float  # so many at least: those that were seen to begin
    idle_beside_launches: float | None = None
    """Share of the time that it launched in which its GPUs ran nothing; None where they were not read meanwhile."""


class HostFacts(Struct, frozen=True):
    """The machine over the window."""

    cpus: int
    busy: dict[int, float] = field(default_factory=dict)  # CPU -> busy share
    stolen: dict[int, float] = field(default_factory=dict)
    """CPU -> share that the hypervisor gave to others (steal): busy, but with nobody's work here."""
    renumbered: bool = False
    """/proc/stat does not number the CPUs as the kernel does, so that what it says of each is of no use: ``busy`` and ``stolen`` are
    empty."""
    psi_io: float | None = None
    psi_memory: float | None = None
    swap_in_per_s: float | None = None
    scanned_per_s: float | None = None  # pages looked at for reclaim
    refaults_per_s: float | None = None
    disk_busy: tuple[str, float] | None = None  # the busiest block device and its busy share
    net_rx_bytes_per_s: float | None = None
    retrans_per_s: float | None = None
    autogroup: bool = False  # sessions have CPU time of their own


class Taker(Struct, frozen=True):
    """A process outside the job that ran, or that the probe saw run in place of a victim."""

    pid: int
    name: str
    cores: float
    preempted_s: float = 0.0  # seconds it ran while a worker or trainer was runnable on that CPU (probe)
    where: Mapping[int, float] = field(default_factory=dict)
    """CPU, in the kernel's numbering -> share of its CPU time, by samples; empty where that is not known."""
    before_ns: int = 0  # CPU time it had taken when the window began, or shortly before where it has run ever since
    info: ProcInfo | None = None
    spawns: bool = False  # it starts short-lived programs, and what these take is counted as its own
    started: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Those of them that were seen: pid -> name, and CPU time when last seen."""


class Reader(Struct, frozen=True):
    """Who reads what a trainer writes."""

    pid: int
    name: str
    is_child: bool  # the trainer started it
    cores: float | None  # CPUs it ran on; None where it is read too seldom to tell


class Grower(Struct, frozen=True):
    """A process outside the jobs that has come to hold more memory since it was first seen."""

    pid: int
    name: str
    grown_bytes: int
    cgroup: str = ""


class Mover(Struct, frozen=True):
    """A process outside the jobs that reads from storage, or writes there."""

    pid: int
    name: str
    bytes_per_s: float


class Capacity(Struct, frozen=True):
    """CPUs as the job sees them."""

    allowed: frozenset[int]  # CPUs all its victims may run on
    host: frozenset[int]
    idle_inside: float  # idle CPUs among the allowed, summed shares
    idle_outside: float
    given: frozenset[int]  # those that its cgroup gives it; all of the host's where that is not known
    taken: float  # CPUs taken by processes outside the job, also by those that lived too shortly to be seen
    used: float  # CPUs the job's processes ran on
    lacking: float  # CPUs it would lack with all of the allowed ones to itself
    preempted_by_others: float | None  # of the time its threads waited behind another, the share behind strangers (probe)
    stolen: float = 0.0  # of the allowed ones, CPUs that the hypervisor gave to others

    @property
    def pinned(self) -> bool:
        return len(self.allowed) < len(self.host)

    @property
    def strangers_part(self) -> float:
        """What strangers take, of all that the job lacks: the rest it would lack without them."""
        return self.taken / (self.taken + self.lacking) if self.taken > 0.0 else 0.0


class Hang(Struct, frozen=True):
    """Nothing of a job, or of the ranks of a training together, moves any more: see `gputop.diagnosis.hangs`."""

    cause: str
    since_ns: int
    from_the_first: bool  # it already stood when it was first looked at
    family: tuple[JobFacts, ...]
    late: tuple[JobFacts, ...]  # those that the others wait for; none where each waits for the others, or for ranks that are not here


class JobFacts(Struct, frozen=True, dict=True):
    """One trainer with its workers and GPUs. `Window` builds it but for what the graph, and the table above that, find."""

    trainer: ProcFacts
    workers: list[ProcFacts]
    gpus: list[GpuFacts]
    calls: CallFacts | None
    data: float = 0.0  # share of the window in which the trainer waited for data
    holders: dict[int, str] = field(default_factory=dict)
    """Those of whom its workers, or itself in fcntl or flock, waited for a lock, with their names."""
    sampled: SampledFacts | None = None
    launches_per_s: float | None = None  # kernels that it launches, where counted, or estimated by how often it was met launching
    quiet_s: float = 0.0  # what `pauses.Quiet` found in the window: it asked nothing of CUDA between steps
    away_s: float = 0.0  # what `pauses.Turns` found: others than those workers that feed its steps worked for it
    pauses: list[Span] = field(default_factory=list)  # all that its GPUs, `Quiet` and `Turns` show of pauses; those that overlap are one
    repeated: Repeated | None = None  # what they have taken for longer than the window, where it pauses and that is much
    births: list[int] = field(default_factory=list)
    """When its workers were first seen, over the last half minute, without those of its first set."""
    respawned: float | None = None  # share of the window that these births took (`measure.respawns`); None where that is not known
    respawn_s: float = 0.0  # what each set of them took, in the mean
    pools: dict[str, float] = field(default_factory=dict)
    """Where the lost time lies: a path such as ``data.runnable`` -> share of the loss; sums to 1. See `gputop.diagnosis.chain`."""
    is_torchs: bool = False  # its loader is torch's DataLoader
    rivals: dict[int, float] = field(default_factory=dict)
    """Pid of another trainer -> share of the window that its main thread slept at a lock until that one's process woke it (probe)."""
    woken_by: dict[int, float] = field(default_factory=dict)
    """Of one without workers: pid -> share of the window that its main thread slept until that process woke it (probe), else that it read
    what that one writes."""
    fed_by: frozenset[int] = frozenset()  # of these, who loads for it without being of a job: for these it slept a good part of the window
    readers: list[Reader] = field(default_factory=list)
    """Those who read what its main thread waits to write, the one it waited for most first."""
    managers: list[ProcFacts] = field(default_factory=list)  # those that serve it and its workers, a thread each: they load nothing
    services: frozenset[int] = frozenset()  # trainers without a GPU, by pid, whose workers load for it: they are among its ``workers``
    throttled_periods: float = 0.0
    fed_throttled_periods: float = 0.0  # of the control group of who feeds it, where that is another and has the quota told here
    quota_cpus: float | None = None
    quota_path: str = ""
    cgroup_version: int = 2
    cpuset: str = ""  # CPUs that its trainer's cgroup gives it; empty where that is not known
    pressed: bool = False  # memory runs short, in its cgroup or on the host: who waits for pages waits for that
    memory_path: str = ""  # the cgroup that is at its memory limit and reads dropped pages again; empty where none is
    memory_limit_bytes: int | None = None
    memory_file_bytes: int | None = None  # page cache in it
    read_limit: ReadLimit | None = None  # what its workers' cgroup may read from a device
    waste: dict[str, float] = field(default_factory=dict)
    """Share of the window in which its GPUs were busy and yet did not work: ``light`` (few SMs), ``slowed`` (clocks), ``peer``."""
    straggler: ProcFacts | None = None  # the trainer of its own group that the others wait for, itself included
    unheard: bool = False  # the trainer itself stands, for nobody takes what it writes to standard output or error
    absent_ranks: tuple[int, ...] = ()  # those of its training that should be on this host and are not, while it stands
    used: float = 0.0  # CPUs its processes ran on, helpers included
    helpers: float = 0.0  # CPUs these ran on
    compiling: float = 0.0  # of these, torch.compile's
    programs_met: Counter[str] = field(default_factory=Counter)
    """What programs that its loaders (its workers, the trainer where it has none) started were met at, and who feeds it: words of
    `waits`."""
    programs: dict[int, str] = field(default_factory=dict)  # those of them that are there, with their names
    stopped: dict[int, str] = field(default_factory=dict)  # those of these programs that are stopped, with their names
    mute: dict[int, str] = field(default_factory=dict)  # those that cannot go on, for nobody reads their errors
    still_s: float = 0.0
    """For how long nothing of it has moved, and whether that is since it was first looked at: see `measure.life`."""
    still_from_the_first: bool = False
    may_spin: bool = False  # its main thread's work may be a wait for its GPU
    hang: Hang | None = None
    kin: frozenset[int] = frozenset()
    """Trainers of its training on this host, itself among them; empty where it is alone. Pids: jobs that hold each other are garbage."""
    kin_used: float = 0.0  # CPUs that all of them use
    claims: list[Any] = field(default_factory=list)  # `gputop.diagnosis.causes.Claim` of each cause that holds a part of the loss
    way: Any = None  # `gputop.diagnosis.edges.Way` along which most of all came that its GPUs idled
    spun: float = 0.0  # CPUs on which its main thread only waits for the GPU
    find_step: Callable[[JobFacts], Step | None] = lambda _: None
    """See `step`; looked for only where somebody asks, for it costs as much as everything else."""
    finished: int = 0  # workers whose part of the data is at its end: they are none of ``workers``
    turns: float = 0.0
    """Mean share of the window, as far as it is seen, in which one of its GPUs ran nothing while another did: they wait for one another."""
    unseen_turns: float = 0.0
    """What of the window this may be besides: readings are means, and what its main thread sleeps or runs for is not told."""
    unbegun_s: float = 0.0  # how old it is, as long as its GPUs have not worked for it yet; 0 afterwards
    by_itself: bool = False
    """Its workers have given it nothing yet, after it has made steps without any: it waits for programs of its own, not for a batch."""
    before_s: float | None = 0.0
    """How much of the window lies before it began to train, where that was seen; None while it starts. See `measure.starts`."""

    @property
    def fed(self) -> float:
        """Share of the window that its main thread slept until those woke it who load for it without being of a job."""
        return sum(self.woken_by.get(pid, 0.0) for pid in self.fed_by)

    @property
    def step(self) -> Step | None:
        """One training step; None where its pace is not found."""
        return self.find_step(self)

    @property
    def is_supplied(self) -> bool:
        """Waits for data are less than half of what its GPUs idle."""
        return self.data < policy.HALF * (self.idle or 0.0)

    @property
    def host_only(self) -> bool:
        """Its GPUs cannot say whether they work, ever: there are none, or the driver does not support it."""
        return all(gpu.unmeasurable for gpu in self.gpus)

    @cached_property
    def idle(self) -> float | None:
        """Share of the window in which none of its GPUs ran anything, unless they were seen to work apart as if they all worked at once;
        None where none is measured."""
        known = [gpu.lost for gpu in self.gpus if gpu.lost is not None]
        return sum(known) / len(known) - self.turns if known else None

    @property
    def lost(self) -> float | None:
        """Mean share of the window in which one of its GPUs ran nothing, and what was wasted while they were busy."""
        idle = self.idle
        return None if idle is None else min(1.0, idle + self.turns + sum(self.waste.values()))


class Facts(Struct, frozen=True):
    """Everything of one window. Each stage returns its own: `Window`, the graph (states, waste, hangs), the table (claims)."""

    t_ns: int
    seconds: float
    jobs: list[JobFacts]
    host: HostFacts
    gpus: list[GpuFacts]
    takers: list[Taker]  # processes outside the jobs by CPU taken, most first
    probed: bool = False  # the sched probe ran
    switch_share: float = 1.0  # of the time, in which it counted switches: below 1 who woke whom is an estimate
    feeds: int = 0  # boards in the window
    behind: dict[int, dict[int, float]] = field(default_factory=dict)
    """Trainer -> pid -> seconds that threads of the trainer's job were runnable while that process ran on their CPU (probe)."""
    family: dict[int, int] = field(default_factory=dict)
    """Pid of a trainer, of a worker, or of a program that one of them started or that feeds a trainer -> the trainer."""
    movers: list[Mover] = field(default_factory=list)  # the one that moves most first; only looked for where a job waits for a disk
    growers: list[Grower] = field(default_factory=list)  # the one that has grown most first; only looked for where a job is short of memory
    watching: float = 0.0  # CPUs that gputop's own processes ran on
    unseen: list[GpuFacts] = field(default_factory=list)  # GPUs on which no process that is seen here was in all the window
    hidden: tuple[str, str] = ("", "")  # why the machine's other processes are not seen, and what would show them; empty where all are
    probes_load: bool = False  # the probes are on their way
    unanswered: bool = False  # the NVIDIA driver has not said yet which GPUs there are
    watched_s: float = inf  # since the first board; the window is a part of that
    pids: Container[int] = frozenset()  # of all processes that are seen
    wakes: dict[int, list[Wake]] = field(default_factory=dict)  # tid of a thread of a trainer or worker -> who woke it (eBPF)
    threads: dict[int, ThreadTime] = field(default_factory=dict)  # tid -> its time (eBPF)
    main_calls: dict[int, float] = field(default_factory=dict)  # trainer -> part of the time in CUDA calls that is its main thread's (eBPF)
    memo: dict[tuple[Hashable, ...], Any] = field(default_factory=dict)  # what `capacity` has worked out of these facts so far

    @property
    def settled(self) -> bool:
        """Enough was seen to judge by."""
        return self.feeds >= 3 and self.seconds >= policy.WATCHED_S


_OWN = ("util_pct", "sm_active_pct")
_OF_ALL = ("gr_active_pct", "power_w", "power_limit_w", "mig", "mig_mode")


def mig_parts(gpu: GpuBoard) -> Iterator[tuple[int, GpuBoard]]:
    """GPU instance -> what is known of it; nothing of a GPU that is not split."""
    known: set[int] = set()
    for one in gpu.instances:
        if one.gpu_instance is not None and one.gpu_instance not in known:
            known.add(one.gpu_instance)  # several compute instances of it share its SMs, and GPM tells of all together
            yield one.gpu_instance, _part(gpu, one)


def _part(gpu: GpuBoard, one: MigInstance) -> GpuBoard:
    part = gpu.copy()
    for name in (*_OWN, *_OF_ALL):
        part.values.pop(name, None)
    for name in _OWN:
        value = getattr(one, name)
        if value is not None:
            part.values[name], part.read_ns[name] = value, gpu.read_ns["mig"]
            part.missing.pop(name, None)
        else:
            part.missing.setdefault(name, one.missing.get(name, ""))
    part.values["procs"] = [proc for proc in gpu.procs if proc.gpu_instance == one.gpu_instance]
    part.values.pop("held_by", None)
    return part


def awaited_gpus(job: JobFacts, part: float) -> float:
    """Share of the window in which the main thread surely waited for its GPUs, so that one of them worked; ``part`` of the time in its
    process's CUDA calls is its own. What it may have slept for else is not counted, nor that it was ready for a CPU in such a call."""
    if job.calls is not None:
        return max(0.0, job.calls.sync * part - job.trainer.runnable)
    return job.trainer.kinds.get(waits.DRIVER, 0.0) + (job.sampled.sync if job.sampled is not None else 0.0)


def may_spin(job: JobFacts) -> bool:
    """What looks like computing may be spinning waits for the GPU: its calls are not probed, its main thread is not sampled, and sleeps for
    far less time than the GPU works."""
    if job.calls is not None or job.sampled is not None or job.idle is None:
        return False
    return job.trainer.asleep <= max(policy.LITTLE, policy.SOME * (1.0 - job.idle))
