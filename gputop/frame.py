"""The vocabulary: what one beat of the collector saw.

A frame holds *raw cumulative counters* and gauges, each as its source gave it; rates, roles, states and verdicts are
derived on read. A frame holds only what was read in that tick: a reading that is absent from it still stands (see
`gputop.board`), except that a *key* frame holds everything, so that a reader may begin there.

Rules for growth, so that old recordings open for ever:
* structs marked ``array_like`` grow at their end, and every new field has a default;
* the other structs are maps: fields may be added anywhere, with a default; none is renamed or given another meaning.

Structs are immutable and point at nothing that points back, so the garbage collector need not know them (``gc=False``): at
ten frames a second it would otherwise cost as much as reading them.

All times named ``t_ns`` are CLOCK_MONOTONIC nanoseconds. ``None`` is "not measured"; where that lasts, the reason stands
in ``missing`` or in the source's state.
"""

from __future__ import annotations

import msgspec

FORMAT_MAJOR = 1
FORMAT_MINOR = 0


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
    """Wall clock at the same moment: ``unix_ns - t_ns`` turns any ``t_ns`` into a date."""
    interval_ns: int = 100_000_000
    clock_tick_hz: int = 100
    cpus: int = 1
    memory_bytes: int = 0
    collector_pid: int = 0
    pid_namespace: int = 0
    """Inode of the collector's pid namespace (/proc/self/ns/pid)."""
    simulated: bool = False
    """True when the GPU numbers come from `gputop demo`; the screen then says SIMULATED."""


class SourceState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a source can give now. ``state``: ``ok``, ``partial``, ``off`` (asked to be) or ``unavailable``."""

    name: str
    state: str
    reason: str = ""
    remedy: str = ""
    """The command or step that would mend it, empty if there is none."""
    detail: dict[str, str] = {}
    """Facts of the source, such as ``driver`` and ``cuda`` of NVML."""


class GpuProc(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process on one GPU (NVML's process lists; utilization from nvmlDeviceGetProcessUtilization)."""

    pid: int
    kind: str = "C"
    """``C`` compute, ``G`` graphics, ``C+G`` both."""
    mem_bytes: int | None = None
    sm_pct: float | None = None
    mem_pct: float | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    gpu_instance: int | None = None
    """MIG GPU instance, None outside MIG."""


class MigInstance(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One MIG device (nvmlDeviceGetMigDeviceHandleByIndex)."""

    index: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    uuid: str = ""
    profile: str = ""
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    sm_count: int | None = None
    sm_active_pct: float | None = None


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What was read of one GPU at ``t_ns``. Several may stand in one frame, one per tier of cost.

    ``None`` means "not read in this sample". ``missing`` says, per field, why there is no value from now on;
    `gputop.board` then drops the value it had.
    """

    index: int
    t_ns: int
    # identity, in key frames and when it changes
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    # every tick
    util_pct: float | None = None
    util_t_ns: int | None = None
    """When the driver took ``util_pct`` (nvmlDeviceGetSamples); None where it does not say."""
    mem_util_pct: float | None = None
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_reserved_bytes: int | None = None
    power_w: float | None = None
    power_instant: bool | None = None
    """True: NVML_FI_DEV_POWER_INSTANT; False: nvmlDeviceGetPowerUsage, on most GPUs since Ampere a 1 s average."""
    energy_mj: int | None = None
    """Cumulative millijoules since the driver loaded (nvmlDeviceGetTotalEnergyConsumption)."""
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    throttle_mask: int | None = None
    """nvmlDeviceGetCurrentClocksEventReasons, raw bits; `gputop.fields.throttle_words` names them."""
    # Hopper and later: GPM, over the interval since the previous sample
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    # about once a second
    temp_c: float | None = None
    mem_temp_c: float | None = None
    power_limit_w: float | None = None
    power_limit_default_w: float | None = None
    power_limit_max_w: float | None = None
    sm_clock_max_mhz: int | None = None
    mem_clock_max_mhz: int | None = None
    pstate: int | None = None
    fan_pct: float | None = None
    pcie_tx_bytes: int | None = None
    """Cumulative (field 197); where it is not supported the rate below is read instead."""
    pcie_rx_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    """nvmlDeviceGetPcieThroughput, which counts for 20 ms."""
    pcie_rx_bytes_per_s: float | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_tx_bytes: int | None = None
    """Cumulative, summed over links."""
    nvlink_rx_bytes: int | None = None
    nvlink_links: int | None = None
    enc_pct: float | None = None
    dec_pct: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    xid: int | None = None
    """The latest Xid error's number since the collector began; None while there was none."""
    compute_mode: str | None = None
    mig_mode: bool | None = None
    mig: list[MigInstance] | None = None
    procs: list[GpuProc] | None = None
    lost: bool | None = None
    """True while NVML says the GPU is lost."""
    # own cost
    nvml_ns: int | None = None
    """Cumulative wall time spent in NVML calls for this GPU."""
    nvml_calls: int | None = None
    missing: dict[str, str] = {}
    """Field name -> why it has no value."""


class ThreadInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A thread's identity (/proc/PID/task/TID/comm)."""

    tid: int
    comm: str


class ProcInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A process's identity: sent when it is new, when it changes, and in key frames."""

    pid: int
    start_ticks: int
    """/proc/PID/stat field 22; with the pid it names a process for ever."""
    ppid: int = 0
    uid: int | None = None
    user: str = ""
    comm: str = ""
    cmdline: list[str] = []
    """/proc/PID/cmdline, cut to a bounded length; empty for kernel threads."""
    exe: str = ""
    ns_pid: int | None = None
    """Its pid in its own namespace where that differs (NSpid of /proc/PID/status)."""
    cgroup: str = ""
    """Path in the unified hierarchy, or in v1's cpu controller."""
    cpus_allowed: str = ""
    """Cpus_allowed_list of /proc/PID/status, such as ``0-3,8``."""
    env: dict[str, str] = {}
    """Only the variables of `gputop.environment.ENV_OF_INTEREST`, where environ is readable."""
    uses_cuda: bool | None = None
    """Maps libcuda or holds /dev/nvidia*; None where that cannot be read."""
    libs: list[str] = []
    """Loader and framework libraries it maps, such as ``torch``, ``jax``, ``tensorflow``, ``dali``."""
    threads: list[ThreadInfo] = []
    """Names of its threads, for trainers and their workers only."""
    wait_unreadable: str = ""
    """Why syscall and wchan of this process cannot be read, empty where they can."""


class ThreadSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread, read each tick for trainers and their workers (/proc/PID/task/TID/{schedstat,stat,status})."""

    tid: int
    oncpu_ns: int
    """schedstat field 1, cumulative."""
    run_delay_ns: int
    """schedstat field 2, cumulative: runnable and not running. Counts cgroup throttling too."""
    timeslices: int
    """schedstat field 3."""
    state: str | None = None
    vol: int | None = None
    invol: int | None = None


class ProcSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process at ``t_ns``. Counters are cumulative since it started.

    ``utime_ns``, ``stime_ns``, faults and ``rss_bytes`` are the whole process's (/proc/PID/stat); ``oncpu_ns``,
    ``run_delay_ns``, ``timeslices``, ``vol`` and ``invol`` its main thread's (schedstat, status), as the kernel gives them.
    """

    pid: int
    start_ticks: int
    t_ns: int
    state: str
    """R, S, D, T, t, Z, X, I, of the main thread."""
    utime_ns: int
    stime_ns: int
    rss_bytes: int
    num_threads: int
    oncpu_ns: int | None = None
    run_delay_ns: int | None = None
    timeslices: int | None = None
    vol: int | None = None
    invol: int | None = None
    minflt: int | None = None
    majflt: int | None = None
    blkio_delay_ns: int | None = None
    """stat field 42, None where it is garbage or delay accounting is off."""
    read_bytes: int | None = None
    """/proc/PID/io: bytes fetched from storage."""
    write_bytes: int | None = None
    processor: int | None = None
    """CPU it last ran on."""
    syscall: int | None = None
    """Number of the system call the main thread sleeps in, -1 while running, None where not readable."""
    syscall_arg: int | None = None
    """The argument that tells waits apart: poll's timeout in ms, otherwise the first argument (often a descriptor)."""
    wchan: str | None = None
    swapin_delay_ns: int | None = None
    threads: list[ThreadSample] = []
    """Its threads, main thread included, for trainers and their workers only."""
    kernel_stack: str | None = None
    rchar_bytes: int | None = None
    """/proc/PID/io rchar: bytes asked for by read calls, pipes and sockets and the page cache included."""


class CpuSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One logical CPU's cumulative time (/proc/stat)."""

    cpu: int
    user_ns: int
    system_ns: int
    idle_ns: int
    iowait_ns: int
    irq_ns: int
    steal_ns: int


class DiskSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One block device, cumulative (/proc/diskstats)."""

    name: str
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    write_bytes: int
    write_ms: int
    io_ms: int


class NetSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One network interface, cumulative (/proc/net/dev)."""

    name: str
    rx_bytes: int
    tx_bytes: int
    rx_drops: int
    tx_drops: int


class Psi(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Pressure stall totals in ns (/proc/pressure/{cpu,io,memory} or a cgroup's ``*.pressure``)."""

    cpu_some_ns: int | None = None
    io_some_ns: int | None = None
    io_full_ns: int | None = None
    memory_some_ns: int | None = None
    memory_full_ns: int | None = None


class CgroupSample(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One cgroup that holds a trainer, a worker or ourselves; v1 and v2 in the same fields.

    Limits are the tightest on the path to the root.
    """

    path: str
    version: int
    quota_cpus: float | None = None
    """cpu.max or cfs_quota/cfs_period, as CPUs; None is no limit."""
    nr_periods: int | None = None
    nr_throttled: int | None = None
    throttled_ns: int | None = None
    cpuset: str | None = None
    mem_bytes: int | None = None
    mem_limit_bytes: int | None = None
    mem_file_bytes: int | None = None
    refaults: int | None = None
    psi: Psi | None = None
    quota_path: str | None = None
    """The cgroup whose quota it is, when that is an ancestor."""


class Host(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The machine. Cheap parts each tick, the rest about once a second; None is "not read in this sample"."""

    t_ns: int
    cpus: list[CpuSample] | None = None
    ctxt: int | None = None
    procs_running: int | None = None
    load1: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    mem_cached_bytes: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    pswpin: int | None = None
    pswpout: int | None = None
    pgmajfault: int | None = None
    allocstall: int | None = None
    pgscan_direct: int | None = None
    refaults: int | None = None
    psi: Psi | None = None
    disks: list[DiskSample] | None = None
    nets: list[NetSample] | None = None
    tcp_retrans: int | None = None
    cgroups: list[CgroupSample] | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None


class SchedThread(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread as the sched probe counts it: cumulative ns and times, what is still going on counted up to the frame's moment.

    ``oncpu_ns`` and ``runnable_ns`` are the scheduler's own sums since the thread was born (as in schedstat); everything else
    counts from when the probe first saw the thread. Threads of hot processes come in every frame in which they changed,
    others once a second.
    """

    tid: int
    pid: int
    oncpu_ns: int
    runnable_ns: int
    """Waiting for a CPU, after a wake-up or a preemption."""
    preempted_ns: int
    """The part of runnable_ns that began with a preemption."""
    sleeping_ns: int
    uninterruptible_ns: int
    vol: int
    invol: int
    max_run_delay_ns: int
    """Longest single wait for a CPU since the previous frame, exact; one still going on counts with its length so far."""
    hist: dict[int, int] = {}
    """Bucket (`gputop.histogram`) -> number of waits for a CPU that ended, cumulative; threads of hot processes only."""
    start_ns: int = 0
    """CLOCK_MONOTONIC when it was born, or first seen where that was before the probe: another value is another thread."""
    state: str = ""
    """``running``, ``runnable``, ``sleeping``, ``uninterruptible`` or ``dead``."""
    comm: str = ""
    """Its name when it died; empty before (see /proc)."""


class Preempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``culprit`` ran on the CPU that ``victim``, a thread of a hot process, was preempted on and still wanted (cumulative).

    Culprit 0 is nobody: the CPU was idle, as when a cgroup quota throttles the victim.
    """

    victim_tid: int
    culprit_tid: int
    culprit_pid: int
    ns: int
    times: int
    """Slices the culprit ran meanwhile."""


class Wakeup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``waker`` ended a sleep of ``wakee``, a thread of a hot process (cumulative). Waker 0 is an interrupt: a timer or a device."""

    wakee_tid: int
    waker_tid: int
    waker_pid: int
    times: int
    wait_ns: int
    """How long the sleeps it ended had lasted."""


class CudaCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One CUDA entry point of one process (uprobes; cumulative)."""

    pid: int
    call: str
    count: int
    total_ns: int
    max_ns: int
    """Longest since the previous frame."""
    hist: dict[int, int] = {}
    """Bucket (`gputop.histogram`) -> calls, cumulative."""
    bytes: int | None = None
    """Sum of the byte counts asked for, None for calls that have none among their arguments."""
    sums: dict[int, int] = {}
    """Bucket -> ns of the calls in it, cumulative: gives quantiles as the mean of their bucket."""
    inflight_ns: int = 0
    """How long the longest call that has not returned yet has lasted, 0 if there is none."""


class Probes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the eBPF maps held at ``t_ns``; threads and pairs that did not change since the last frame are left out."""

    t_ns: int
    threads: list[SchedThread] = []
    preempts: list[Preempt] = []
    wakeups: list[Wakeup] = []
    calls: list[CudaCall] = []
    gone: list[int] = []
    """tids whose entries were pruned."""
    map_used: dict[str, int] = {}
    map_size: dict[str, int] = {}
    lost: dict[str, int] = {}
    """Map name -> updates that failed (full map), cumulative."""
    drain_ns: int = 0
    run_ns: int | None = None
    """CPU the probes' programs took, cumulative, where the kernel counts it."""


class Stack(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thread's stack, taken at ``t_ns``; frames innermost first."""

    pid: int
    tid: int
    t_ns: int
    python: list[str] = []
    kernel: list[str] = []
    syscall: str = ""
    wchan: str = ""
    wait: str = ""
    """What it waits for, in words."""
    error: str = ""
    """Why it could not be read, empty otherwise."""
    incident: str = ""
    thread: str = ""
    """The thread's name: Python's own, otherwise the kernel's comm."""
    state: str = ""
    """R, S, D, T, t, Z of the thread when it was taken."""
    gil: bool = False
    """It held the GIL."""
    missing: dict[str, str] = {}
    """Part (``kernel``, ``syscall``, ``native``) -> why it is not there although the rest is; ``moment`` -> why they may not belong
    together."""
    source: dict[str, str] = {}
    """``file:line`` -> that line's text, for frames of the user's own code that could be read."""


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


class Frame(msgspec.Struct, omit_defaults=True):
    """One beat: what was read between its deadline and its sending."""

    seq: int
    t_ns: int
    """When reading began."""
    late_ns: int = 0
    """How much later than the beat's deadline that was."""
    missed: int = 0
    """Beats that were skipped since the previous frame."""
    key: bool = False
    gpus: list[Gpu] = []
    procs: list[ProcSample] = []
    infos: list[ProcInfo] = []
    gone: list[int] = []
    """Pids that ended (or were reused) since the previous frame."""
    host: Host | None = None
    probes: Probes | None = None
    sources: list[SourceState] = []
    """States that changed; in a key frame all of them."""
    stacks: list[Stack] = []
    marks: list[Mark] = []
    cost: SelfCost | None = None
