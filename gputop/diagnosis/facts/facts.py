"""The facts of one window of time, which the verdicts judge. Shares are 0..1 of the window, times are seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf

from msgspec import Struct, field

from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.losses import Loss
from gputop.diagnosis.facts.pauses import Repeated, Span
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.serving import ServerFacts
from gputop.diagnosis.facts.traced import TraceFacts
from gputop.diagnosis.facts.wakes import ThreadTime, Wake
from gputop.findings import policy
from gputop.findings.ranks import SlowPart
from gputop.findings.verdict import Step
from gputop.findings.ways import Way
from gputop.model.board import GpuBoard
from gputop.model.collective import CollectiveNow
from gputop.model.frame import MigInstance, Nic, ProcInfo, ReadLimit, link_bytes_per_s
from gputop.model.parallel import Parallel
from gputop.model.serving import ServingNow


class Neighbour(Struct, frozen=True):
    """A process outside a job whose kernels run on the job's GPU."""

    pid: int
    name: str
    share: float  # of the time in which its kernels ran there
    user: str = ""  # empty if unknown, or the job's own
    by_mps: bool = False  # its kernels run beside the job's (MPS), and not in turn with them


class GpuFacts(Struct, frozen=True):
    """One GPU, or one GPU instance of MIG, over the window."""

    index: int
    util: float | None
    """Share of the time in which some kernel ran, from GPM; without GPM the mean of NVML's utilization, which also counts copies."""
    sm_active: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    sm_clock_free_mhz: float | None = None
    """Highest clock seen while nothing in `facts.intensity` held it down; None if never seen."""
    throttle_mask: int = 0  # bits set in at least half of the window's samples
    temp_c: float | None = None
    host_bytes_per_s: float | None = None  # both ways, over PCIe; over C2C where it has links to a Grace CPU
    host_back_bytes_per_s: float | None = None  # the part that it sends
    nvlink_bytes_per_s: float | None = None  # both ways, over all links; None: it has none, or they are not counted
    pcie_gen: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    pcie_gen_max: float | None = None
    best_gen: float | None = None  # the highest generation of the last `policy.GENERATIONS_NS`: it falls while the link rests
    pcie_replays_per_s: float | None = None  # packets that the link sent again, between the last two readings
    c2c_links: float | None = None  # to a Grace CPU: copies go over these, and not over PCIe
    c2c_link_bytes_per_s: float | None = None  # what each of these carries one way
    numa_node: float | None = None  # that its slot is attached to; None: the kernel does not know
    near_cpus: frozenset[int] = frozenset()  # that node's CPUs; empty if unknown
    slowed_parts: dict[str, float] = field(default_factory=dict)
    """Reason -> share of the time between the driver's last two readings, 10 s apart, for which it held the clocks down, as counted."""
    power_smoothing: bool = False  # power is held up and let down slowly on purpose: it shows no load
    recovery_action: float | None = None  # what the driver asks for: a key of `gputop.model.xids.RECOVERIES`; 0: nothing
    pids: frozenset[int] = frozenset()
    ran: dict[int, float] = field(default_factory=dict)
    """Pid -> share of the time in which its kernels ran, by the driver's samples of each process; empty where it gives none (MIG)."""
    own: float | None = None  # of `ran`, what the job's own processes ran; None for a GPU that is looked at without a job
    neighbours: tuple[Neighbour, ...] = ()  # others' processes with kernels here, most first
    stretch_s: float = 0.0  # longest idle stretch that reaches into the window and followed steady work
    breaks_s: float = 0.0  # work lost in `pauses.Breaks` in the window
    sunk_s: float = 0.0  # work lost in breaks with little work for a while
    dips_s: float = 0.0  # work lost in all dips after steady work, also in dips too short to be breaks
    pauses: tuple[Span, ...] = ()  # the breaks, and idle stretches as long as a break
    worked_ns: int = 0  # CLOCK_MONOTONIC when it last worked; 0: not since the engine began
    unmeasurable: bool = False  # the driver gives no utilization for it
    loss: Loss | None = None  # why it is lost, or must be reset
    util_now: float | None = None  # the latest reading
    idle_s: float = 0.0  # how long, up to now, it has been idle (under 2 % of the time)
    makes_steps: bool = False
    """True if the GPU works again and again, however little: it began to work `policy.OFTEN` times within `policy.STEPS_NS`, or no reading
    for `policy.STEADY_NS` was without work."""
    split: bool = False  # MIG is on: the GPU's total activity belongs to no single job
    instance: int | None = None  # the GPU instance, if this is a part of a split GPU
    name: str = ""  # the name shown to people: ``3``; ``3:1`` for a part

    @property
    def place(self) -> tuple[int, int | None]:
        """(GPU index, GPU instance): equal for two jobs that share it."""
        return self.index, self.instance

    @property
    def gone(self) -> bool:
        """True if the GPU is lost and can run nothing."""
        return self.loss is not None and not self.loss.works

    @property
    def lost(self) -> float | None:
        """Share of the window in which the GPU did no work; None if its utilization is unknown."""
        return 1.0 if self.gone else None if self.util is None else 1.0 - self.util

    @property
    def link_bytes_per_s(self) -> float | None:
        """Bytes per second that the GPU's link to the host carries one way: PCIe at its present generation and width, or all its links
        to a Grace CPU; None if these are unknown."""
        if self.c2c_links:
            return self.c2c_links * self.c2c_link_bytes_per_s if self.c2c_link_bytes_per_s else None
        return link_bytes_per_s(int(self.best_gen or self.pcie_gen or 0), int(self.pcie_width or 0))

    @property
    def full_link_bytes_per_s(self) -> float | None:
        """Bytes per second that the widest and newest link that GPU and slot allow carries one way; None if that is unknown."""
        generation, lanes = self.pcie_gen_max or self.best_gen or self.pcie_gen, self.pcie_width_max or self.pcie_width
        return link_bytes_per_s(int(generation or 0), int(lanes or 0))


class CallFacts(Struct, frozen=True):
    """CUDA calls of a trainer over the window, if the probes count them."""

    seconds: float
    sync: float = 0.0  # share of the window inside synchronize calls
    sync_per_s: float = 0.0
    most_syncs_per_s: float = 0.0  # of the most frequent synchronize: an ``item()`` makes two, a copy that waits and a synchronize
    waits_per_s: float = 0.0  # synchronizes and copies from the GPU, per second: as many equally long calls as share their time
    copy: float = 0.0
    slow: float = 0.0  # part of ``sync`` spent in copies, which may or may not have waited for kernels
    slow_bytes_per_s: float = 0.0  # bytes of copies that ``sync`` contains entirely
    copy_per_s: float = 0.0
    rates: tuple[float, ...] = ()  # calls per second, of each call except copies to the GPU
    to_gpu_per_s: float = 0.0  # copies with HtoD in their name
    to_gpu_bytes_per_s: float = 0.0  # bytes of copies with HtoD in their name; the next field: with DtoH
    from_gpu_bytes_per_s: float = 0.0
    copy_bytes_per_s: float | None = None
    counted_share: float = 1.0  # share of the time in which calls were counted; the least over the calls

    @property
    def counted_in(self) -> str:
        """Words to append to a count of calls if they were counted only part of the time; empty otherwise."""
        if self.counted_share >= 1.0:
            return ""
        return f", counted in {max(0.1, 100 * self.counted_share):.{0 if self.counted_share >= 0.01 else 1}f} % of the time"


class SampledFacts(Struct, frozen=True):
    """Activity of a trainer's main thread by samples while it ran, over the window, if its calls are not probed."""

    sync: float  # share of the window in which it spun in waits for the GPU
    copy: float
    launch: float
    waits_per_s: float  # waits for the GPU per second, estimated
    seen_per_s: float  # waits for the GPU per second that were seen to begin: a lower bound
    idle_beside_launches: float | None = None
    """Share of the time spent launching in which the trainer's GPUs ran nothing; None if they were not read in that time."""


class PortUse(Struct, frozen=True):
    """Use of one RDMA port."""

    name: str  # ``mlx5_0/1``
    is_up: bool
    link: str
    interface: str
    bytes_per_s: float | None  # the larger of what it sends and receives; None: its driver counts no bytes
    packets_per_s: float | None  # both ways
    line_bytes_per_s: float | None  # what its link carries one way

    @property
    def device(self) -> str:
        return self.name.partition("/")[0]


class HostFacts(Struct, frozen=True):
    """The machine over the window."""

    cpus: int
    busy: dict[int, float] = field(default_factory=dict)  # CPU -> busy share
    stolen: dict[int, float] = field(default_factory=dict)
    """CPU -> share that the hypervisor gave to other guests (steal): busy, but not for a process of this machine."""
    renumbered: bool = False
    """True if /proc/stat numbers the CPUs differently from the kernel: ``busy`` and ``stolen`` are empty then."""
    psi_io: float | None = None
    psi_memory: float | None = None
    swap_in_per_s: float | None = None
    scanned_per_s: float | None = None  # pages looked at for reclaim
    refaults_per_s: float | None = None
    disk_busy: tuple[str, float] | None = None  # the busiest block device and its busy share
    net_rx_bytes_per_s: float | None = None
    retrans_per_s: float | None = None
    nics: tuple[Nic, ...] = ()
    ports: tuple[PortUse, ...] = ()  # RDMA; empty without devices, and while they are not read twice
    autogroup: bool = False  # sessions have CPU time of their own


class Taker(Struct, frozen=True):
    """A process outside the job that used CPUs, or that the probe saw run in place of a victim."""

    pid: int
    name: str
    cores: float
    preempted_s: float = 0.0  # seconds it ran while a worker or trainer was runnable on that CPU (probe)
    where: Mapping[int, float] = field(default_factory=dict)
    """CPU, in the kernel's numbering -> share of the process's CPU time, by samples; empty if unknown."""
    before_ns: int = 0  # CPU time it had taken when the window began (or when it began to run, if shortly before)
    info: ProcInfo | None = None
    spawns: bool = False  # it starts short-lived programs, and their CPU time is counted as its own
    started: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Short-lived programs that were seen: pid -> (name, CPU time in ns when last seen)."""


class OutputReader(Struct, frozen=True):
    """A process that reads what a trainer writes."""

    pid: int
    name: str
    is_child: bool  # the trainer started it
    cores: float | None  # CPUs it ran on; None if it was read only once


class Member(Struct, frozen=True):
    """A process of a job's family outside its own tree, see `gputop.diagnosis.facts.family`."""

    pid: int
    name: str
    part: str  # a word of `gputop.findings.verdict.PARTS`
    near: bool  # the trainer itself exchanges data with it; False: one behind such a process
    cores: float  # CPUs it ran on
    ready: float  # share of the window in which its main thread was runnable
    met: Counter[str]  # samples by kind of wait (words of `waits`) of its main thread, or of the threads it leaves the work to
    asks: tuple[int, ...] = ()  # pids of the trainer and of members at the other ends of what it reads, and of members that it started
    paced: bool | None = False  # it feeds at a pace of its own, or at that of its senders (`facts.paced`); None: not yet known
    by_senders: bool = False  # that pace is its senders': it passes on what comes
    locked_by: Counter[int] = field(default_factory=Counter)  # samples of its main thread at a mutex, by pid of the other process with it
    arriving: float = 0.0  # share of the window in which data kept arriving at its TCP connections, or an answer was due; 0: not read
    kernel: float = 0.0  # part of its CPU time that it spent in the kernel
    paging: float = 0.0  # part of its sleeps that were for pages, by its major faults; 0 if these are few, or it has several threads

    @property
    def locked_out(self) -> tuple[int, float]:
        """(pid of the process that most often held a mutex at which it slept, share of its samples); (0, 0.0) if none did."""
        [(pid, times)] = self.locked_by.most_common(1) or [(0, 0)]
        return pid, times / max(1, self.met.total())

    @property
    def spent(self) -> dict[str, float]:
        """Activity -> share of the window, summing to 1: ``on-cpu``, ``ready``, and the kinds of its sleep."""
        ran = min(1.0, self.cores)
        rest = 1.0 - ran - (ready := min(1.0 - ran, self.ready))
        met: dict[str, float] = {kind: times for kind, times in self.met.items() if kind != waits.ONCPU and times}
        asleep = met or {waits.DISK: self.paging, waits.UNKNOWN: 1.0 - self.paging}
        return {waits.ONCPU: ran, "ready": ready} | {kind: rest * part / sum(asleep.values()) for kind, part in asleep.items()}


class Grower(Struct, frozen=True):
    """A process outside the jobs that holds more memory than when it was first seen."""

    pid: int
    name: str
    grown_bytes: int
    cgroup: str = ""


class Mover(Struct, frozen=True):
    """A process outside the jobs that reads from or writes to storage."""

    pid: int
    name: str
    bytes_per_s: float


class Capacity(Struct, frozen=True):
    """The CPUs available to one job, and their use."""

    allowed: frozenset[int]  # CPUs all its victims may run on
    host: frozenset[int]
    idle_inside: float  # idle CPUs among the allowed, summed shares
    idle_outside: float
    given: frozenset[int]  # CPUs that its cgroup grants; all of the host's if unknown
    taken: float  # CPUs taken by processes outside the job, unseen short ones included
    used: float  # CPUs the job's processes ran on
    lacking: float  # CPUs the job would lack even with all allowed CPUs to itself
    preempted_by_others: float | None  # share of its threads' waits for a CPU that were behind strangers (probe)
    stolen: float = 0.0  # allowed CPUs that the hypervisor gave to other guests, summed shares

    @property
    def pinned(self) -> bool:
        return len(self.allowed) < len(self.host)

    @property
    def strangers_part(self) -> float:
        """Strangers' part of all the CPUs that the job lacks; it would lack the rest without them, too."""
        return self.taken / (self.taken + self.lacking) if self.taken > 0.0 else 0.0


class CudaFacts(Struct, frozen=True):
    """CUDA calls of a trainer, by probes or else by samples."""

    calls: CallFacts | None = None
    sampled: SampledFacts | None = None
    launches_per_s: float | None = None  # kernels launched per second: counted, or estimated from samples


class GpuUseFacts(Struct, frozen=True):
    """Time of a job's GPUs in which they did nothing for it, beyond the time in which all idled."""

    turns: float = 0.0
    """Mean share of the window, as far as seen, in which one of its GPUs ran nothing while another worked: they wait for each other."""
    unseen_turns: float = 0.0
    """Share of the window that may be such turns, too: readings are means, and the reason for the main thread's sleep or spin is
    unknown."""
    waste: dict[str, float] = field(default_factory=dict)
    """Share of the window in which its GPUs were busy without progress: ``light`` (few SMs), ``slowed`` (clocks), ``shared`` (for
    others, while its own kernels waited), ``peer`` (waiting in a collective)."""


class PauseFacts(Struct, frozen=True):
    """Pauses of a trainer: see `gputop.diagnosis.facts.pauses`."""

    quiet_s: float = 0.0  # time without CUDA calls between steps in the window (`pauses.Quiet`)
    away_s: float = 0.0  # time in which other workers than those feeding its steps worked (`pauses.Turns`)
    spans: list[Span] = field(default_factory=list)  # pauses by its GPUs, `Quiet` and `Turns`; the same one may be listed twice
    repeated: Repeated | None = None  # total of its pauses over longer than the window; None if they are few or short


class LoaderFacts(Struct, frozen=True):
    """The workers of a job as a pool: their loader, births and ends."""

    is_torchs: bool = False  # the loader is torch's DataLoader
    finished: int = 0  # workers that reached the end of their part of the data; ``JobFacts.workers`` omits them
    births: list[int] = field(default_factory=list)
    """When the workers were first seen, in ns, over the last half minute; the first set is left out."""
    respawned: float | None = None  # share of the window that the births took (`facts.respawns`); None if unknown
    respawn_s: float = 0.0  # seconds that each set of births took, on average
    by_itself: bool = False
    """True if the workers have delivered nothing yet, after the trainer made steps without any: it waits for programs of its own, not for a
    batch."""


class FeederFacts(Struct, frozen=True):
    """Processes outside the job that load for it."""

    woken_by: dict[int, float] = field(default_factory=dict)
    """Pid -> share of the window that the main thread slept until that process woke it (probe), else that it waited to read from that
    process. Only for a trainer without workers."""
    pids: frozenset[int] = frozenset()  # processes of ``woken_by`` outside all jobs that load for it, and their siblings and children
    services: frozenset[int] = frozenset()  # pids of trainers without a GPU: their workers load for it (and are in ``JobFacts.workers``)

    @property
    def share(self) -> float:
        """Share of the window that the main thread slept until its feeders woke it."""
        return sum(self.woken_by.get(pid, 0.0) for pid in self.pids)


class ProgramFacts(Struct, frozen=True):
    """Programs started by a job's loaders (workers; the trainer, if it has none)."""

    met: Counter[str] = field(default_factory=Counter)
    """Samples by kind of wait (words of `waits`) of the programs and of the job's feeders."""
    names: dict[int, str] = field(default_factory=dict)  # programs that live: pid -> name
    lasting: frozenset[int] = frozenset()  # the ones that began before the window
    stopped: dict[int, str] = field(default_factory=dict)  # stopped ones: pid -> name
    mute: dict[int, str] = field(default_factory=dict)  # the ones blocked writing errors that no process reads


class OutputFacts(Struct, frozen=True):
    """Output of a main thread, and its readers."""

    readers: list[OutputReader] = field(default_factory=list)
    """Processes that read what the main thread waits to write, most waited for first."""
    unheard: bool = False  # the trainer is blocked writing to standard output or error, which no process reads


class LockFacts(Struct, frozen=True):
    """Locks that a job waits for, outside its own processes or between its workers."""

    holders: dict[int, str] = field(default_factory=dict)
    """Lock holders (pid -> name) that the workers, members, or the trainer in fcntl, flock or a mutex, waited for."""
    rivals: dict[int, float] = field(default_factory=dict)
    """Pid of another trainer -> share of the window that the main thread slept at a lock until that trainer's process woke it (probe)."""


class LimitFacts(Struct, frozen=True):
    """Limits of the control groups of a job's processes."""

    throttled_periods: float = 0.0
    fed_throttled_periods: float = 0.0  # of its feeders' cgroup, if that is another one and has the quota below
    quota_cpus: float | None = None
    quota_path: str = ""
    of_members: dict[int, tuple[float, float, str]] = field(default_factory=dict)
    """Pid of a member of its family in another cgroup -> (share of periods with throttling, CPUs and path of that cgroup's quota)."""
    cgroup_version: int = 2
    cpuset: str = ""  # CPUs that its trainer's cgroup grants; empty if unknown
    memory_path: str = ""  # the cgroup at its memory limit that rereads dropped pages; empty if there is none
    memory_limit_bytes: int | None = None
    memory_file_bytes: int | None = None  # page cache in it
    read_limit: ReadLimit | None = None  # its workers' cgroup's limit for reads from a device
    pressed: bool = False  # memory is short, in its cgroup or on the host: waits for pages count as waits for memory


class CpuFacts(Struct, frozen=True):
    """CPUs that a job's processes ran on."""

    used: float = 0.0  # by all, helpers included
    helpers: float = 0.0  # by its helpers
    compiling: float = 0.0  # by torch.compile's helpers


class LifeFacts(Struct, frozen=True):
    """Signs of life of a job, and its start."""

    still_s: float = 0.0  # seconds for which nothing of the job has moved: see `gputop.diagnosis.facts.life`
    from_the_first: bool = False  # nothing has moved since the first look
    may_spin: bool = False  # its main thread's work may be a wait for its GPU
    unbegun_s: float = 0.0  # the trainer's age until its GPUs first work for it; 0 afterwards
    before_s: float | None = 0.0
    """Seconds of the window before it began to train, if that was seen; None while it starts. See `gputop.diagnosis.facts.starts`."""


class RankFacts(Struct, frozen=True):
    """The other ranks of a job's training."""

    kin: frozenset[int] = frozenset()
    """Pids of the training's trainers on this host, the job's own included; empty if it is alone. (Pids, for jobs that refer to each other
    would need the garbage collector.)"""
    used: float = 0.0  # CPUs that all use
    straggler: ProcFacts | None = None  # the trainer that the others wait for (maybe the job's own)
    absent: tuple[int, ...] = ()  # ranks of the training missing from this host while the job stands still
    parallel: Parallel | None = None  # how the training is divided over its ranks; None: its command line does not state that
    part: SlowPart | None = None  # all of whose ranks are as late as ``straggler``; None: it is late by itself
    by_turns: tuple[int, ...] = ()  # pids of the trainers that were late by turns in the last seconds, ``straggler`` among them
    clocks_mhz: tuple[float, float] | None = None  # SM clock of the straggler's GPU, and the median of the others'; None: not known


class JobFacts(Struct, frozen=True, dict=True):
    """One trainer with its workers and GPUs: its processes, and what each subject found. `Window` builds it;
    `gputop.diagnosis.graph.job.WalkedJob` adds the findings of the wait-for graph."""

    trainer: ProcFacts
    workers: list[ProcFacts]
    gpus: list[GpuFacts]
    managers: list[ProcFacts] = field(default_factory=list)  # servers with one thread per client (Manager): they load nothing
    members: list[Member] = field(default_factory=list)  # of its family, outside its own tree
    cuda: CudaFacts = CudaFacts()
    gpu_use: GpuUseFacts = GpuUseFacts()
    pauses: PauseFacts = PauseFacts()
    loader: LoaderFacts = LoaderFacts()
    feeders: FeederFacts = FeederFacts()
    programs: ProgramFacts = ProgramFacts()
    output: OutputFacts = OutputFacts()
    locks: LockFacts = LockFacts()
    limits: LimitFacts = LimitFacts()
    cpus: CpuFacts = CpuFacts()
    life: LifeFacts = LifeFacts()
    ranks: RankFacts = RankFacts()
    trace: TraceFacts | None = None  # the newest trace of torch.profiler, while it stands
    find_step: Callable[[JobFacts, float], Step | None] = lambda _job, _data: None
    """Computes the training step, given the share of the window in which the trainer waited for data; only on request: it costs as much as
    everything else."""

    @property
    def host_only(self) -> bool:
        """True if the job cannot have a GPU utilization: it has no GPU, or the driver does not support it."""
        return all(gpu.unmeasurable for gpu in self.gpus)

    @cached_property
    def idle(self) -> float | None:
        """Share of the window in which none of its GPUs ran anything, as if they all worked at the same time, unless they were seen to take
        turns; None if none is measured."""
        known = [gpu.lost for gpu in self.gpus if gpu.lost is not None]
        return sum(known) / len(known) - self.gpu_use.turns if known else None

    @cached_property
    def lost(self) -> float | None:
        """Mean share of the window in which one of its GPUs ran nothing, plus what was wasted while they were busy; None if none is
        measured."""
        idle = self.idle
        return None if idle is None else min(1.0, idle + self.gpu_use.turns + sum(self.gpu_use.waste.values()))


class Memo:
    """Results that `gputop.diagnosis.facts.capacity` derived from the facts of one window, each worked out once."""

    __slots__ = ("allowed", "capacity", "needed", "strangers")

    def __init__(self) -> None:
        self.capacity: dict[int, Capacity] = {}  # by trainer
        self.allowed: dict[int, frozenset[int]] = {}  # trainer -> CPUs that its job may run on
        self.needed: dict[tuple[frozenset[int], frozenset[int]], float] = {}  # (ranks, CPUs) -> CPUs that they need there
        self.strangers: dict[frozenset[int], list[Taker]] = {}  # ranks -> takers outside all ranks


class WireUse(Struct, frozen=True):
    """Use of the wire by one rank."""

    pid: int
    name: str
    busy: float  # share of the time in which its busiest connection had data on the wire
    sent_bytes_per_s: float
    received_bytes_per_s: float
    retrans_per_s: float
    rtt_us: int | None
    interface: str
    own: str  # address and port of its busiest connection
    peer: str  # those of that connection's other end

    @property
    def exchanges(self) -> bool:
        """True if data go both ways, as between ranks; an upload or a download goes one way."""
        sent, received = self.sent_bytes_per_s, self.received_bytes_per_s
        return min(sent, received) >= policy.TENTH * max(sent, received) > 0.0


class Facts(Struct, frozen=True):
    """All facts of one window, as `Window` returns them; `gputop.diagnosis.graph.job.WalkedFacts` has what later stages found."""

    t_ns: int
    seconds: float
    jobs: Sequence[JobFacts]
    host: HostFacts
    gpus: list[GpuFacts]
    takers: list[Taker]  # processes outside the jobs by CPU taken, most first
    probed: bool = False  # the sched probe ran
    switch_share: float = 1.0  # share of the time in which it counted switches: below 1 the wake-ups are an estimate
    feeds: int = 0  # boards in the window
    wires: dict[int, WireUse] = field(default_factory=dict)  # pid of a rank -> how it used the wire between ranks, as far as it is read
    servings: list[ServingNow] = field(default_factory=list)  # inference servers, as their own metrics have it
    collectives: dict[int, tuple[CollectiveNow, ...]] = field(default_factory=dict)
    """Pid of a rank -> its collectives by name, where NCCL's Inspector writes them; those that take most time first."""
    ways: dict[int, tuple[Way, ...]] = field(default_factory=dict)  # pid of a rank -> the ways on which its data move to other ranks
    servers: dict[int, ServerFacts] = field(default_factory=dict)  # trainer that is an inference engine -> its server, if that is read
    behind: dict[int, dict[int, float]] = field(default_factory=dict)
    """Trainer -> pid -> seconds that threads of the trainer's job were runnable while that process ran on their CPU (probe)."""
    family: dict[int, int] = field(default_factory=dict)
    """Pid of a trainer, of a worker, or of a program that feeds a trainer or was started by one of these -> pid of the trainer."""
    movers: list[Mover] = field(default_factory=list)  # most bytes first; filled only if a job waits for a disk
    growers: list[Grower] = field(default_factory=list)  # most growth first; filled only if a job waits for a disk or memory
    watching: float = 0.0  # CPUs that gputop's own processes ran on
    unseen: list[GpuFacts] = field(default_factory=list)  # GPUs that no process seen here used in the window
    hidden: tuple[str, str] = ("", "")  # why other processes of the machine are not seen, and the remedy; empty if all are seen
    probes_load: bool = False  # the probes are being loaded
    unanswered: bool = False  # the NVIDIA driver has not listed the GPUs yet
    watched_s: float = inf  # since the first board; at least the window's length
    pids: Container[int] = frozenset()  # all processes that are seen
    wakes: dict[int, list[Wake]] = field(default_factory=dict)  # tid of a thread of a trainer or worker -> its wakers (eBPF)
    threads: dict[int, ThreadTime] = field(default_factory=dict)  # tid -> its time (eBPF)
    file_servers: dict[int, str] = field(default_factory=dict)
    """Pid -> name of each process of this host that ended sleeps of trainers and workers at files: daemons of file systems (FUSE; eBPF).
    Interrupts and the kernel's threads end those at disks."""
    main_calls: dict[int, float] = field(default_factory=dict)  # trainer -> part of the time in CUDA calls that is its main thread's (eBPF)
    memo: Memo = field(default_factory=Memo)  # results that `capacity` derived from these facts

    @property
    def settled(self) -> bool:
        """True if enough was seen to judge."""
        return self.feeds >= 3 and self.seconds >= policy.WATCHED_S


_OWN = ("util_pct", "sm_active_pct")
_OF_ALL = ("gr_active_pct", "power_w", "power_limit_w", "mig", "mig_mode")


def mig_parts(gpu: GpuBoard) -> Iterator[tuple[int, GpuBoard]]:
    """Yields (GPU instance, its own board) for each MIG instance; nothing for a GPU that is not split."""
    known: set[int] = set()
    for one in gpu.instances:
        if one.gpu_instance is not None and one.gpu_instance not in known:
            known.add(one.gpu_instance)  # its compute instances share its SMs, and GPM measures them together
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
    """Lower bound of the share of the window in which the main thread waited for its GPUs, so that one worked. ``part``: the main
    thread's part of the time in its process's CUDA calls. Sleeps that may have other reasons and waits for a CPU inside such a call do not
    count."""
    if job.cuda.calls is not None:
        return max(0.0, job.cuda.calls.sync * part - job.trainer.runnable)
    return job.trainer.kinds.get(waits.DRIVER, 0.0) + (job.cuda.sampled.sync if job.cuda.sampled is not None else 0.0)
