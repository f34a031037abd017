"""What is known about one window of time: what the verdicts judge. Shares are 0..1 of the window, times seconds."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from gputop.diagnosis.model import ProcState
from gputop.frame import ProcInfo
from gputop.rates import ProcRates
from gputop.roles import Role


@dataclass(slots=True)
class GpuFacts:
    """One GPU over the window."""

    index: int
    util: float | None
    """Mean of NVML's utilization, which is itself the share of time some kernel ran."""
    sm_active: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    throttle_mask: int = 0
    """Bits set in at least half of the window's samples."""
    temp_c: float | None = None
    pcie_bytes_per_s: float | None = None
    """Both ways."""
    pcie_gen: float | None = None
    pcie_width: float | None = None
    pids: frozenset[int] = frozenset()
    stretch_s: float = 0.0
    """The longest time in which it did nothing at all that reaches into the window, if steady work came before it."""
    worked_before: bool = False
    """It has worked since the engine began."""
    unmeasurable: bool = False
    """The driver gives no utilization for it."""
    util_now: float | None = None
    """The latest reading."""
    idle_s: float = 0.0
    """For how long, up to now, it has done nothing at all (utilization under 2 %)."""

    @property
    def lost(self) -> float | None:
        """Share of the window in which it did no work."""
        return None if self.util is None else 1.0 - self.util


@dataclass(slots=True)
class ProcFacts:
    """One trainer or worker over the window."""

    pid: int
    info: ProcInfo
    role: Role
    run: float
    runnable: float
    kinds: dict[str, float]
    """What it slept on (words of `gputop.diagnosis.waits`) -> share of the window."""
    rates: ProcRates | None
    seconds: float
    """Observed: shorter than the window for a young process."""
    threads_run: tuple[float, ...] = ()
    """On-CPU share of each of its threads, main thread first where it was read."""
    threads_runnable: float = 0.0
    """Run-queue share of the other threads together."""
    measured_sleep: bool = False
    """The probe measured what was sleep and what was uninterruptible."""
    unsampled: bool = False
    """No sample met it asleep."""
    first_seen_ns: int = 0
    state: ProcState = field(default_factory=lambda: ProcState(0, "running"))
    cpu_s: float = 0.0
    still_s: float = 0.0
    """For how long, up to now, it has neither run nor switched."""


@dataclass(slots=True)
class CallFacts:
    """CUDA calls of a trainer over the window, where probed."""

    sync: float = 0.0
    """Share of the window inside synchronize calls."""
    sync_per_s: float = 0.0
    copy: float = 0.0
    copy_per_s: float = 0.0
    copy_bytes_per_s: float | None = None


@dataclass(slots=True)
class HostFacts:
    """The machine over the window."""

    cpus: int
    busy: dict[int, float] = field(default_factory=dict)
    """CPU -> busy share."""
    psi_cpu: float | None = None
    psi_io: float | None = None
    psi_memory: float | None = None
    swap_in_per_s: float | None = None
    direct_reclaim_per_s: float | None = None
    refaults_per_s: float | None = None
    disk_busy: tuple[str, float] | None = None
    """The busiest block device and its busy share."""
    disk_read_bytes_per_s: float | None = None
    net_rx_bytes_per_s: float | None = None
    net_tx_bytes_per_s: float | None = None
    retrans_per_s: float | None = None


@dataclass(slots=True)
class Taker:
    """A process outside the job that ran, or that the probe saw run in place of a victim."""

    pid: int
    name: str
    cores: float
    preempted_s: float = 0.0
    """Seconds it ran while a worker or trainer was runnable on that CPU (probe)."""
    info: ProcInfo | None = None


@dataclass(slots=True)
class JobFacts:
    """One trainer with its workers and GPUs."""

    trainer: ProcFacts
    workers: list[ProcFacts]
    gpus: list[GpuFacts]
    calls: CallFacts | None
    data: float = 0.0
    """Share of the window in which the trainer waited for data."""
    births: list[int] = field(default_factory=list)
    """When its workers were first seen, over the last half minute, without those of its first set."""
    pools: dict[str, float] = field(default_factory=dict)
    """Where the lost time lies: a path such as ``data.runnable`` -> share of the loss; sums to 1. See `gputop.diagnosis.chain`."""
    data_woken_by_workers: float | None = None
    """Share of the trainer's sleep that a worker's wake-up ended (probe)."""
    throttled_periods: float = 0.0
    quota_cpus: float | None = None
    quota_path: str = ""
    cgroup_version: int = 2
    memory_path: str = ""
    """The cgroup that is at its memory limit and reads dropped pages again; empty where none is."""
    memory_limit_bytes: int | None = None
    waste: dict[str, float] = field(default_factory=dict)
    """Share of the window in which its GPUs were busy and yet did not work: ``light`` (few SMs), ``slowed`` (clocks), ``peer``."""
    straggler: ProcFacts | None = None
    """The trainer of its own group that the others wait for, itself included."""
    steps_per_s: float | None = None
    age_s: float = 0.0
    """Since the trainer started."""

    @property
    def host_only(self) -> bool:
        """Its GPUs cannot say whether they work, ever: there are none, or the driver does not support it."""
        return all(gpu.unmeasurable for gpu in self.gpus)

    @property
    def idle(self) -> float | None:
        """Mean share of the window in which its GPUs ran nothing; None where none is measured."""
        known = [gpu.lost for gpu in self.gpus if gpu.lost is not None]
        return sum(known) / len(known) if known else None

    @property
    def lost(self) -> float | None:
        """That, and what was wasted while busy."""
        idle = self.idle
        return None if idle is None else min(1.0, idle + sum(self.waste.values()))


@dataclass(slots=True)
class Facts:
    """Everything of one window."""

    t_ns: int
    seconds: float
    jobs: list[JobFacts]
    host: HostFacts
    gpus: list[GpuFacts]
    takers: list[Taker]
    """Processes outside the jobs by CPU taken, most first."""
    probed: bool = False
    """The sched probe ran."""
    feeds: int = 0
    """Boards in the window."""

    @property
    def settled(self) -> bool:
        """Enough was seen to judge by."""
        return self.feeds >= 3 and self.seconds >= 1.0
