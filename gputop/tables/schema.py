"""The tables and their columns: name, type, unit, meaning, and how each is made."""

from __future__ import annotations

import json

from gputop.model.driverlog import XID
from gputop.model.xids import meaning_of
from gputop.tables.columns import MS, NS
from gputop.tables.columns import count as _count
from gputop.tables.columns import cpu_seconds as _cpu_seconds
from gputop.tables.columns import gauge as _gauge
from gputop.tables.columns import name as _name
from gputop.tables.columns import owner as _owner
from gputop.tables.columns import seconds as _seconds
from gputop.tables.columns import truth as _truth
from gputop.tables.derived import (
    OFFCPU,
    SWITCHES,
    WAITS,
    call_names,
    flag,
    listed_now,
    mean_ms,
    name_of,
    of_threads,
    offcpu_ns,
    pid_of,
    read_now,
    role,
    scaled_later,
)
from gputop.tables.rows import scaled
from gputop.tables.runs import RUNS
from gputop.tables.spec import CLOCK, Column, TableSpec, made
from gputop.tables.traced import KERNEL, TRACE

SYNC_WORD = "ynchronize"  # in the names of all of CUDA's synchronize calls


GPU = TableSpec("gpu", "each GPU in each tick; NULL was not read in this tick (NVML)", ("gpus",), (
    *CLOCK,
    _gauge("gpu", "INTEGER", "index", "index"),
    _gauge("util_pct", "REAL", "time in which a kernel or a copy ran, %"),
    _gauge("mem_util_pct", "REAL", "time in which memory was read or written, %"),
    _gauge("mem_used_bytes", "INTEGER", "memory in use, bytes"),
    _gauge("power_w", "REAL", "power, W"),
    Column("energy_j", "REAL", "energy, J since it was read last, every few seconds",
           lambda rows: scaled(rows.increment("energy_mj"), 1e-3), adds_up=True),
    _gauge("sm_clock_mhz", "INTEGER", "SM clock, MHz"),
    _gauge("mem_clock_mhz", "INTEGER", "memory clock, MHz"),
    _gauge("throttle_mask", "INTEGER", "why clocks are held down, NVML's bits (nvmlClocksEventReasons)"),
    _gauge("gr_active_pct", "REAL", "time in which any kernel ran, copies not counted, % (GPM)"),
    _gauge("sm_active_pct", "REAL", "SMs with a warp on them, % (GPM)"),
    _gauge("sm_occupancy_pct", "REAL", "warps of those possible, % (GPM)"),
    _gauge("tensor_active_pct", "REAL", "tensor pipes busy, % (GPM)"),
    _gauge("dram_active_pct", "REAL", "DRAM busy, % (GPM)"),
    _gauge("temp_c", "REAL", "temperature, degrees C"),
    _count("pcie_tx_bytes", "sent to the host, bytes"),
    _count("pcie_rx_bytes", "received from the host, bytes"),
    _gauge("pcie_tx_bytes_per_s", "REAL", "sent to the host where only the rate is known, bytes/s"),
    _gauge("pcie_rx_bytes_per_s", "REAL", "received from the host where only the rate is known, bytes/s"),
    _count("nvlink_tx_bytes", "sent over NVLink, bytes"),
    _count("nvlink_rx_bytes", "received over NVLink, bytes"),
    _seconds("nvml_s", "nvml_ns", "time spent in NVML calls for it"),
    _gauge("mem_total_bytes", "INTEGER", "memory, bytes"),
    _truth("mem_shared", "1 where the GPU has no memory of its own: its bytes in use and in all are the host's"),
    _gauge("power_limit_w", "REAL", "power limit, W"),
    _gauge("mem_temp_c", "REAL", "temperature of its memory, degrees C"),
    _gauge("fan_pct", "REAL", "fan, %"),
    _gauge("pstate", "INTEGER", "performance state, 0 is the fastest"),
    _gauge("pcie_gen", "INTEGER", "PCIe generation of the link now"),
    _gauge("pcie_width", "INTEGER", "PCIe lanes now"),
    _gauge("enc_pct", "REAL", "video encoder busy, %"),
    _gauge("dec_pct", "REAL", "video decoder busy, %"),
    _gauge("ecc_corrected", "INTEGER", "corrected memory errors since the driver loaded"),
    _gauge("ecc_uncorrected", "INTEGER", "uncorrected memory errors since the driver loaded"),
    _gauge("xid", "INTEGER", "number of the latest Xid error since the collector began"),
    Column("xid_meaning", "TEXT", "what that Xid error means", lambda rows: [meaning_of(xid) for xid in rows.gauge("xid")]),
    _truth("lost", "1: the driver has lost it, 0: it answers for it; sent when that changes, and every 10 s or so"),
    _truth("needs_reset", "1: an Xid error has come after which it must be reset"),
    _count("pcie_replays", "packets that its PCIe link sent again"),
    _count("pcie_recoveries", "times that its PCIe link was trained again"),
    _count("pcie_corrected_errors", "corrected errors of its PCIe link"),
    _count("nvlink_replays", "packets that its NVLinks sent again"),
    _count("nvlink_recoveries", "times that its NVLinks were trained again"),
    _count("nvlink_crc_errors", "packets with a wrong checksum on its NVLinks"),
    _seconds("slowed_power_s", "slowed_power_ns", "time in which the power limit held its clocks down"),
    _seconds("slowed_sync_boost_s", "slowed_sync_boost_ns", "time in which another GPU of its sync boost group held its clocks down"),
    _seconds("slowed_heat_s", "slowed_heat_ns", "time in which heat held its clocks down"),
    _seconds("slowed_hw_heat_s", "slowed_hw_heat_ns", "time in which the hardware's own slowdown by heat held its clocks down"),
    _seconds("slowed_brake_s", "slowed_brake_ns", "time in which the server's power brake held its clocks down"),
    _truth("power_smoothing", "1: its power is smoothed on purpose"),
    _gauge("recovery_action", "INTEGER", "what the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain, 4 drain and reset"),
    _gauge("c2c_links", "INTEGER", "links to a Grace CPU, over which its copies go"),
    _gauge("c2c_link_bytes_per_s", "REAL", "what each of these carries one way, bytes/s"),
    _count("c2c_tx_bytes", "sent over these, bytes"),
    _count("c2c_rx_bytes", "received over these, bytes"),
))  # fmt: skip

PROC = TableSpec("proc", "each process in each tick in which it was read (/proc/PID): up to 16 trainers and workers in each tick, others "
                 "less often; what a process did between its last row and its end is in none", ("procs",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    Column("role", "TEXT", "trainer, worker, helper or bystander", role),
    Column("dt_s", "REAL", "time since its row before, s", lambda rows: scaled(rows.increment("t_ns"), NS)),
    _gauge("state", "TEXT", "R running or runnable, S sleeping, D disk, T stopped, Z ended; main thread"),
    Column("cpu_s", "REAL", "CPU of all its threads, s since it was read (0.2 s; rows between have 0), in clock ticks",
           lambda rows: scaled(rows.total("utime_ns", "stime_ns"), NS)),
    _seconds("oncpu_s", "oncpu_ns", "CPU of its main thread"),
    _seconds("runq_s", "run_delay_ns", "its main thread waited for a CPU"),
    Column("offcpu_s", "REAL", "its main thread was not on a CPU, s in the tick", lambda rows: scaled(offcpu_ns(rows), NS)),
    Column("switches", "INTEGER", "context switches of its main thread since they were read (0.2 s; rows between have 0)",
           lambda rows: rows.total("vol", "invol")),
    Column("thread_switches", "INTEGER", "context switches of all its threads since its row before, in its last row until it ended; "
           "counted every 0.2 to 1.2 s and spread evenly over that (sched probe); NULL is not counted, or not yet",
           lambda rows: of_threads(rows, SWITCHES)),
    _count("vol", "voluntary context switches of its main thread"),
    _count("invol", "involuntary context switches of its main thread"),
    Column("stall_ms", "REAL", "longest single wait for a CPU of any of its threads since its row before, ms (sched probe; a wait of a "
           "bystander may stand in two rows); NULL where none was reported", lambda rows: scaled_later(of_threads(rows, WAITS), 1e-6)),
    _gauge("rss_bytes", "INTEGER", "resident memory, bytes"),
    _gauge("anon_bytes", "INTEGER", "of a trainer or worker: anonymous memory, also where swapped, bytes (every 1.5 s)"),
    _gauge("shared_bytes", "INTEGER", "of a worker: how much of anon_bytes it shares with others, bytes (now and then)"),
    _seconds("wire_busy_s", "wire_busy_ns", "of a rank: its busiest TCP connection had data on the wire"),
    _count("wire_sent_bytes", "of a rank: sent by TCP and acknowledged, bytes"),
    _count("wire_received_bytes", "of a rank: received by TCP, bytes"),
    _count("wire_retrans", "of a rank: TCP segments sent again"),
    _gauge("wire_rtt_us", "INTEGER", "of a rank: smoothed round trip of its busiest TCP connection, microseconds"),
    _gauge("wire_interface", "TEXT", "of a rank: the network interface of that connection"),
    _seconds("wire_arriving_s", "wire_arriving_ns", "of a rank or a feeder: data kept arriving at one of its TCP connections"),
    _gauge("wire_own", "TEXT", "of a rank: own address and port of that connection"),
    _gauge("wire_peer", "TEXT", "of a rank: address and port of that connection's other end"),
    _gauge("threads", "INTEGER", "number of threads", "num_threads"),
    _count("minflt", "minor page faults"),
    _count("majflt", "major page faults"),
    _seconds("blkio_s", "blkio_delay_ns", "waiting for block I/O"),
    _count("read_bytes", "fetched from storage, bytes"),
    _count("write_bytes", "sent to storage, bytes"),
    _count("rchar_bytes", "asked for by read calls, bytes"),
    _gauge("processor", "INTEGER", "CPU its main thread ran on last"),
    _gauge("syscall", "INTEGER", "system call its main thread sleeps in, -1 while running"),
    _gauge("wchan", "TEXT", "kernel function its main thread sleeps in"),
    Column("thread_offcpu_s", "REAL", "time off a CPU of all its threads, s; counted when a thread is reported that has run since, as "
           "thread_switches are (sched probe)", lambda rows: scaled_later(of_threads(rows, OFFCPU), NS)),
), read_now)  # fmt: skip

_CALLS = (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    _gauge("call", "TEXT", "CUDA entry point"),
    _count("calls", "calls", "count"),
    Column("total_ms", "REAL", "time in them, ms in the tick", lambda rows: scaled(rows.increment("total_ns"), 1e-6)),
    Column("mean_ms", "REAL", "mean time of a call in the tick, ms", mean_ms),
    Column("max_ms", "REAL", "longest call that ended in the tick, ms, rounded up by 3 % at most",
           lambda rows: [value / 1e6 for value in rows.gauge("max_ns")]),
    _gauge("counted_share", "REAL", "share of the time in which it is counted; below 1 the other numbers are estimates", "share"),
)  # fmt: skip

SYNC = TableSpec("sync", "CUDA synchronize calls of each process (uprobes)", ("probes", "calls"), _CALLS,
                 lambda rows: [SYNC_WORD in call for call in rows.gauge("call")])  # fmt: skip
COPY = TableSpec("copy", "memory copies of each process: the other CUDA calls that are probed (uprobes)", ("probes", "calls"),
                 (*_CALLS, _count("bytes", "moved, bytes")),
                 lambda rows: [SYNC_WORD not in call for call in rows.gauge("call")])  # fmt: skip

THREAD_CALL = TableSpec("thread_call", "CUDA calls of each thread, as far as they were seen (uprobes)", ("probes", "thread_calls"), (
    *CLOCK,
    _gauge("tid", "INTEGER", "thread"),
    _gauge("pid", "INTEGER", "its process"),
    _name("name", "pid", "process"),
    _gauge("call", "TEXT", "CUDA entry point"),
    _count("calls", "calls", "count"),
    Column("total_ms", "REAL", "time in them, ms in the tick", lambda rows: scaled(rows.increment("total_ns"), 1e-6)),
))  # fmt: skip

_SWITCH_SHARE = _owner(
    "counted_share", "REAL", "share of the time in which context switches are counted; below 1 the numbers are estimates", "share"
)
PREEMPT = TableSpec("preempt", "processes that ran on a CPU while a thread waited for it (sched probe)", ("probes", "preempts"), (
    *CLOCK,
    _gauge("victim_tid", "INTEGER", "thread that waited"),
    Column("victim_pid", "INTEGER", "its process", pid_of("victim_tid")),
    Column("victim", "TEXT", "name of that process", name_of("victim_tid")),
    _gauge("culprit_tid", "INTEGER", "thread that ran; 0: none, as while a cgroup quota throttles"),
    _gauge("culprit_pid", "INTEGER", "its process"),
    _name("culprit", "culprit_pid", "process that ran"),
    _seconds("lost_s", "ns", "how long"),
    _count("times", "how often"),
    _SWITCH_SHARE,
))  # fmt: skip

WAKEUP = TableSpec("wakeup", "which thread ended the sleep of which (sched probe)", ("probes", "wakeups"), (
    *CLOCK,
    _gauge("wakee_tid", "INTEGER", "thread that slept"),
    Column("wakee_pid", "INTEGER", "its process", pid_of("wakee_tid")),
    Column("wakee", "TEXT", "name of that process", name_of("wakee_tid")),
    _gauge("waker_tid", "INTEGER", "thread that woke it; 0 is an interrupt"),
    _gauge("waker_pid", "INTEGER", "its process"),
    _name("waker", "waker_pid", "process that woke it"),
    Column("call", "TEXT", "system call that it slept in; none is a page fault", call_names),
    Column("call_kind", "TEXT", "what the call waited for: futex, timer, child, signal, fault, memory, filesystem, io_uring, ipc, several, "
           "or the descriptor's file: pipe, unix, network, file, disk, nvidia, terminal, device, eventfd, epoll, pidfd, anonymous",
           lambda rows: [kind or None for kind in rows.gauge("kind")]),
    Column("futex", "TEXT", "address of the futex in wakee's memory, in hexadecimal; woken both ways at one address it is a lock",
           lambda rows: [f"{address:x}" if address else None for address in rows.gauge("address")]),
    Column("shared", "INTEGER", "1 if it is a futex of several processes: in each its address is another", flag("shared")),
    Column("inherits", "INTEGER", "1 if it is a futex that lends its owner the sleeper's priority", flag("inherits")),
    Column("timed", "INTEGER", "1 if the call had a time limit", flag("timed")),
    Column("uninterruptible", "INTEGER", "1 if no signal could end the sleep, as that for a disk", flag("uninterruptible")),
    _count("times", "how often"),
    _seconds("wait_s", "wait_ns", "length of the sleeps that it ended"),
    _SWITCH_SHARE,
))  # fmt: skip

STACK = TableSpec("stack", "stacks of threads, innermost frame first", ("stacks",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _gauge("tid", "INTEGER", "thread"),
    _name("name", "pid", "process"),
    Column("python", "TEXT", "Python frames, a line each", lambda rows: ["\n".join(frames) for frames in rows.gauge("python")]),
    Column("kernel", "TEXT", "kernel frames, a line each", lambda rows: ["\n".join(frames) for frames in rows.gauge("kernel")]),
    _gauge("wait", "TEXT", "what it waits for"),
    _gauge("syscall", "TEXT", "system call it sleeps in"),
    _gauge("wchan", "TEXT", "kernel function it sleeps in"),
    _gauge("error", "TEXT", "why the stack could not be read"),
    _gauge("incident", "TEXT", "the incident it was taken for"),
))  # fmt: skip

MARK = TableSpec("mark", "markers of the job (gputop mark), and of the recorder after gaps; the time is when they were set", ("marks",), (
    *CLOCK, _gauge("text", "TEXT", "the marker"),
), own_time=True)  # fmt: skip


PROCESS = TableSpec("process", "each process once; t_ns is when it was first seen", (), (
    *CLOCK,
    made("pid", "INTEGER", "process"),
    made("ppid", "INTEGER", "its parent"),
    made("start_ticks", "INTEGER", "when it began, clock ticks since boot; with the pid it names a process for ever"),
    made("name", "TEXT", "its name (comm)"),
    made("cmdline", "TEXT", "its command line"),
    made("user", "TEXT", "its user"),
    made("role", "TEXT", "trainer, worker, helper or bystander"),
    made("trainer_pid", "INTEGER", "the trainer it works for"),
    made("rank", "INTEGER", "a trainer's rank"),
    made("label", "TEXT", "its name on the screen and in explain"),
    made("cgroup", "TEXT", "its cgroup"),
    made("cpus_allowed", "TEXT", "CPUs it may run on"),
    made("training", "TEXT", "the training that it is a rank of, or works for: where its ranks meet, and their number; ~ if that is not "
          "known: program and number"),
    made("container_runtime", "TEXT", "runtime of its container: Docker, containerd, CRI-O, Podman, LXC, Apptainer …"),
    made("container_id", "TEXT", "id of its container"),
    made("container", "TEXT", "name of its container (trainers)"),
    made("pod", "TEXT", "its pod (trainers)"),
    made("pod_by", "TEXT", "where the pod's name stands; HOSTNAME may differ from it"),
    made("namespace", "TEXT", "the pod's namespace (trainers)"),
    made("pod_uid", "TEXT", "the pod's uid"),
    made("pod_qos", "TEXT", "the pod's class: guaranteed, burstable or besteffort"),
    made("slurm_job_id", "TEXT", "its Slurm job"),
    made("slurm_step", "TEXT", "its Slurm step: a number, batch, extern or interactive"),
    made("slurm_task", "TEXT", "its Slurm task on this node"),
    made("slurm_array", "TEXT", "array job and task: 4700_12"),
    made("slurm_node", "TEXT", "the node as Slurm calls it"),
    made("parallel", "TEXT", "of a rank: sizes of its training's groups by command line and configuration: {\"dp\": 4, \"tp\": 2 …}"),
    made("collectives", "TEXT", "of a rank: the collective library that it maps, and its version: nccl 2.21.5"),
    made("rdma_devices", "TEXT", "of a rank: RDMA devices that it has open, JSON"),
    made("nccl_shm", "INTEGER", "of a rank: its mappings of /dev/shm/nccl-*"),
    made("nccl_variables", "TEXT", "of a rank: its NCCL_*, RCCL_* and GLOO_* variables, JSON"),
    made("unidentified", "TEXT", "of a trainer: why columns from training on are NULL, JSON, name to reason"),
))  # fmt: skip

INCIDENT = TableSpec("incident", "the incidents of the diagnosis, one row per episode; t_ns is its beginning", (), (
    *CLOCK,
    made("id", "INTEGER", "number"),
    made("dt_s", "REAL", "how long it lasted, s"),
    made("lasts", "INTEGER", "1 if it had not ended when the recording did"),
    made("symptom", "TEXT", "what the GPU experienced"),
    made("cause", "TEXT", "why"),
    made("severity", "TEXT", "info, low, medium or high"),
    made("confidence", "REAL", "0 to 1, how sure the cause is: how much of the path was measured, and what else holds as much"),
    made("near", "TEXT", "another cause that held nearly as much of the loss: both stand"),
    made("trainer_pid", "INTEGER", "the trainer"),
    made("gpu", "INTEGER", "the GPU"),
    made("lost_s", "REAL", "GPU time lost to it, s; do not add them up: jobs that share a GPU have each lost all of it "
          "(the ledger of `gputop explain` divides it)"),
    made("regain_gpu_s", "REAL", "GPU time that would come back without it, s; these add up. NULL: no GPU is measured, or unexplained"),
    made("speedup_max", "REAL", "upper bound of how much faster the work gets without it, while it lasts. NULL: as above, or hardly any "
          "work was done"),
    made("path", "TEXT", "the walk from the lost time to the cause: steps with pid, name, share, state, on (what it waited for), "
          "measured, JSON"),
    made("headline", "TEXT", "in a sentence"),
    made("detail", "TEXT", "and one more"),
    made("victims", "TEXT", "the processes that suffered, JSON"),
    made("culprits", "TEXT", "the processes that took it from the victims, with CPU seconds, JSON"),
    made("evidence", "TEXT", "the numbers behind it, JSON"),
    made("fixes", "TEXT", "what to do, JSON"),
))  # fmt: skip

LEDGER = TableSpec("ledger", "GPU time lost by each trainer, one row per trainer and cause; t_ns is the beginning of what was read", (), (
    *CLOCK,
    made("trainer_pid", "INTEGER", "the trainer"),
    made("label", "TEXT", "what gputop calls it: train.py rank 3"),
    made("rank", "INTEGER", "its rank"),
    made("user", "TEXT", "its owner"),
    made("slurm_job_id", "TEXT", "its Slurm job"),
    made("namespace", "TEXT", "its Kubernetes namespace"),
    made("pod", "TEXT", "its pod"),
    made("cause", "TEXT", "why; NULL: it lost nothing"),
    made("lost_s", "REAL", "GPU time lost to that, s; these add up, also over trainers that share a GPU"),
    made("gpu_s", "REAL", "all GPU time of the trainer, s; the same in each of its rows"),
))  # fmt: skip

MEMBER = TableSpec("member", "each process of a job's family once: those that compute, feed, serve, read or coordinate; t_ns is when "
                   "it was first found", (), (
    *CLOCK,
    made("pid", "INTEGER", "process"),
    made("start_ticks", "INTEGER", "when it began, clock ticks since boot; with the pid it names a process for ever"),
    made("trainer_pid", "INTEGER", "the trainer of the job"),
    made("part", "TEXT", "what it does in the job, by what it was last seen to do: computes, feeds, serves, reads or coordinates"),
    made("label", "TEXT", "its name on the screen, part and program: feeder raylet"),
))  # fmt: skip

GAP = TableSpec("gap", "stretches without data; t_ns is the last tick before", (), (
    *CLOCK,
    made("dt_s", "REAL", "how long, s"),
    made("missed", "INTEGER", "beats that the collector skipped"),
    made("reason", "TEXT", "why"),
))  # fmt: skip

_PSI = (
    _seconds("psi_cpu_some_s", "psi.cpu_some_ns", "some task waited for a CPU (pressure/cpu)"),
    _seconds("psi_io_some_s", "psi.io_some_ns", "some task waited for I/O (pressure/io)"),
    _seconds("psi_io_full_s", "psi.io_full_ns", "all tasks that could run waited for I/O"),
    _seconds("psi_memory_some_s", "psi.memory_some_ns", "some task waited for memory (pressure/memory)"),
    _seconds("psi_memory_full_s", "psi.memory_full_ns", "all tasks that could run waited for memory"),
)

_CPU_TIMES = (
    ("user_s", "user_ns", "in user space, nice included"), ("system_s", "system_ns", "in the kernel"), ("idle_s", "idle_ns", "idle"),
    ("iowait_s", "iowait_ns", "idle while a task waits for I/O"), ("irq_s", "irq_ns", "in interrupts"),
    ("steal_s", "steal_ns", "taken by the hypervisor"),
)  # fmt: skip

HOST = TableSpec("host", "the machine; CPUs five times a second, the rest once a second; NULL was not read in this tick. Counters grow "
                 "since they were read last", ("host",), (
    *CLOCK,
    Column("cpus", "INTEGER", "CPUs online (/proc/stat)", lambda rows: [cpus and len(cpus) for cpus in rows.gauge("cpus")]),
    *(_cpu_seconds(f"cpu_{name}", field, f"time of all CPUs {what}") for name, field, what in _CPU_TIMES),
    _count("switches", "context switches (ctxt of /proc/stat)", "ctxt"),
    _gauge("procs_running", "INTEGER", "tasks running or runnable (/proc/stat)"),
    _gauge("load1", "REAL", "load of one minute (/proc/loadavg)"),
    *_PSI,
    _gauge("mem_total_bytes", "INTEGER", "memory, bytes (/proc/meminfo)"),
    _gauge("mem_available_bytes", "INTEGER", "memory that can be had without swapping, bytes"),
    _gauge("mem_cached_bytes", "INTEGER", "page cache, bytes"),
    _gauge("swap_total_bytes", "INTEGER", "swap, bytes"),
    _gauge("swap_free_bytes", "INTEGER", "free swap, bytes"),
    _gauge("shm_total_bytes", "INTEGER", "size of /dev/shm, bytes"),
    _gauge("shm_free_bytes", "INTEGER", "free in /dev/shm, bytes"),
    _count("pswpin", "pages swapped in (/proc/vmstat)"),
    _count("pswpout", "pages swapped out"),
    _count("pgmajfault", "major page faults"),
    _count("allocstall", "allocations that had to reclaim memory themselves"),
    _count("pgscan_direct", "pages looked at by such allocations"),
    _count("pgscan", "pages scanned for reclaim, by any process"),
    _count("refaults", "pages read again soon after they were dropped"),
    _count("tcp_retrans", "TCP segments sent again (/proc/net/snmp)"),
))  # fmt: skip

CPU = TableSpec("cpu", "each logical CPU, five times a second (/proc/stat)", ("host", "cpus"), (
    *CLOCK,
    _gauge("cpu", "INTEGER", "number"),
    *(_seconds(name, field, f"time {what}") for name, field, what in _CPU_TIMES),
))  # fmt: skip

DISK = TableSpec("disk", "each block device, once a second; partitions are in none (/proc/diskstats)", ("host", "disks"), (
    *CLOCK,
    _gauge("disk", "TEXT", "name", "name"),
    _count("reads", "reads that ended"),
    _count("read_bytes", "read, bytes"),
    _seconds("read_s", "read_ms", "total time of these reads", MS),
    _count("writes", "writes that ended"),
    _count("write_bytes", "written, bytes"),
    _seconds("write_s", "write_ms", "total time of these writes", MS),
    _seconds("busy_s", "io_ms", "time with a request under way", MS),
))  # fmt: skip

NET = TableSpec("net", "each network interface but lo, once a second (/proc/net/dev)", ("host", "nets"), (
    *CLOCK,
    _gauge("interface", "TEXT", "name", "name"),
    _count("rx_bytes", "received, bytes"),
    _count("tx_bytes", "sent, bytes"),
    _count("rx_drops", "received packets dropped"),
    _count("tx_drops", "packets dropped when sending"),
    _count("rx_errors", "packets received with an error"),
    _count("tx_errors", "packets that could not be sent"),
    _count("flaps", "times that the link was lost; NULL is no hardware (/sys/class/net)"),
))  # fmt: skip

_OF_PORT = (
    ("rx_bytes", "received, bytes"), ("tx_bytes", "sent, bytes"), ("rx_packets", "received, packets"), ("tx_packets", "sent, packets"),
    ("tx_wait_ticks", "ticks of the device in which data waited for room at the other end (InfiniBand)"),
    ("ecn_marked", "packets received that a switch marked"), ("cnp_sent", "congestion notifications sent"),
    ("cnp_received", "congestion notifications received"), ("retrans", "times that it sent again"), ("errors", "packets received broken"),
    ("discards", "packets dropped"), ("flaps", "times that the link was lost"), ("recoveries", "times that it came back by itself"),
)  # fmt: skip
RDMA = TableSpec("rdma", "each port of an RDMA device (InfiniBand, RoCE, EFA), bytes and packets once a second, the rest each five; what "
                 "it carries stands not in net (/sys/class/infiniband)", ("host", "rdma"), (
    *CLOCK,
    _gauge("port", "TEXT", "device and port: mlx5_0/1", "name"),
    *(_gauge(name, "TEXT", what) for name, what in (
        ("driver", "driver: mlx5_core"), ("link", "InfiniBand, or Ethernet (RoCE)"), ("state", "ACTIVE, DOWN, …"),
        ("interface", "network interface on the same port"))),
    _gauge("rate_mbit", "INTEGER", "rate of the link, Mbit/s"),
    *(_count(name, what) for name, what in _OF_PORT),
    Column("missing", "TEXT", "why values are NULL: JSON, name to reason",
           lambda rows: [json.dumps(missing, ensure_ascii=False) for missing in rows.gauge("missing")]),
))  # fmt: skip

CGROUP = TableSpec("cgroup", "each cgroup of trainers, workers and gputop, five times a second, v1 and v2 alike; limits are the tightest "
                   "up to the root. Memory, cpuset and pressure are read once a second and restated between", ("host", "cgroups"), (
    *CLOCK,
    _gauge("path", "TEXT", "its path"),
    _gauge("version", "INTEGER", "1 or 2"),
    _gauge("quota_cpus", "REAL", "CPU quota, CPUs (cpu.max); NULL is no quota"),
    _gauge("quota_path", "TEXT", "the cgroup above that has the quota; NULL is itself"),
    _count("periods", "periods of the quota in which it ran (nr_periods of cpu.stat)", "nr_periods"),
    _count("throttled", "periods in which it was throttled (nr_throttled)", "nr_throttled"),
    _seconds("throttled_s", "throttled_ns", "throttled (throttled_usec)"),
    _gauge("cpuset", "TEXT", "CPUs it may use (cpuset.cpus.effective)"),
    _gauge("mem_bytes", "INTEGER", "memory in use, page cache included, bytes (memory.current)"),
    _gauge("mem_limit_bytes", "INTEGER", "memory limit, bytes (memory.max or memory.high); NULL is no limit"),
    _gauge("mem_limit_path", "TEXT", "the cgroup above that has the limit; NULL is itself"),
    _gauge("mem_file_bytes", "INTEGER", "page cache, bytes (memory.stat)"),
    _count("refaults", "pages read again soon after they were dropped (memory.stat)"),
    *_PSI,
    _gauge("read_limit_path", "TEXT", "the cgroup that limits reads (io.max); NULL is no limit", "read_limit.path"),
    _gauge("read_limit_device", "TEXT", "the device, major:minor", "read_limit.device"),
    _gauge("read_limit_bytes_per_s", "INTEGER", "limit of reads, bytes/s", "read_limit.bytes_per_s"),
    _gauge("read_limit_ios_per_s", "INTEGER", "limit of reads, 1/s", "read_limit.ios_per_s"),
))  # fmt: skip

GPU_PROCESS = TableSpec("gpu_process", "each process on each GPU, once a second (NVML)", ("gpus", "procs"), (
    *CLOCK,
    _owner("gpu", "INTEGER", "index of the GPU", "index"),
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    _gauge("kind", "TEXT", "C compute, G graphics, M a client of MPS; several with +"),
    _gauge("mem_bytes", "INTEGER", "GPU memory in use, bytes"),
    _gauge("sm_pct", "REAL", "SM utilization by it, % (nvmlDeviceGetProcessUtilization)"),
    _gauge("mem_pct", "REAL", "utilization of the memory interface by it, %"),
    _gauge("enc_pct", "REAL", "video encoder, %"),
    _gauge("dec_pct", "REAL", "video decoder, %"),
    _gauge("gpu_instance", "INTEGER", "MIG GPU instance; NULL outside MIG"),
), listed_now)  # fmt: skip

HARDWARE = TableSpec("hardware", "the machine's slow facts, read twice a minute (/proc, /sys); a row when one changed, and about every ten "
                     "seconds", ("host", "hardware"), (
    *CLOCK,
    _gauge("cores", "INTEGER", "physical cores"),
    _gauge("threads", "INTEGER", "logical CPUs online"),
    _gauge("cpu_mhz", "REAL", "CPU clock now, mean of all CPUs, MHz"),
    _gauge("cpu_max_mhz", "REAL", "highest CPU clock, MHz"),
    _gauge("cpu_temp_c", "REAL", "temperature of the hottest sensor of the CPU, degrees C"),
    _gauge("cpu_temp_limit_c", "REAL", "temperature at which that sensor is critical, degrees C"),
    Column("missing", "TEXT", "why values are NULL, here and in nic and file_system: JSON, name to reason",
           lambda rows: [json.dumps(missing, ensure_ascii=False) for missing in rows.gauge("missing")]),
))  # fmt: skip

NIC = TableSpec("nic", "each network interface but lo, as often as hardware (/sys/class/net)", ("host", "hardware", "nics"), (
    *CLOCK,
    _gauge("interface", "TEXT", "name", "name"),
    Column("is_up", "INTEGER", "1 if it is up", flag("is_up")),
    _gauge("speed_mbit", "INTEGER", "speed of the link, Mbit/s"),
    _gauge("mtu", "INTEGER", "largest packet, bytes"),
))  # fmt: skip

FILE_SYSTEM = TableSpec("file_system", "each mounted file system with a disk here or in the network, as often as hardware (statvfs)",
                        ("host", "hardware", "file_systems"), (
    *CLOCK,
    _gauge("path", "TEXT", "mount point"),
    _gauge("device", "TEXT", "device or export"),
    _gauge("kind", "TEXT", "type, as ext4 or nfs4"),
    Column("is_remote", "INTEGER", "1 if it lies on another machine", flag("is_remote")),
    _gauge("total_bytes", "INTEGER", "size, bytes"),
    _gauge("free_bytes", "INTEGER", "free to ordinary users, bytes"),
    _gauge("files", "INTEGER", "files in it (inodes in use)"),
))  # fmt: skip

LAUNCH = TableSpec("launch", "kernel launches of each process, counted for some hundredths of a second every other second (uprobe on "
                   "cuLaunchKernel)", ("probes", "launches"), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    _gauge("launches_per_s", "REAL", "kernel launches over the last few counts, 1/s", "per_s"),
))  # fmt: skip

MAIN = TableSpec("main_thread", "where the main thread of each trainer was on a CPU (perf's task clock; only without eBPF)", ("sampled",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    _seconds("watched_s", "watched_ns", "time in which it was sampled"),
    _seconds("sync_s", "sync_ns", "CPU spinning in synchronize calls and in copies from the GPU"),
    _seconds("copy_s", "copy_ns", "CPU in copies to the GPU"),
    _seconds("launch_s", "launch_ns", "CPU launching kernels"),
    _seconds("unknown_s", "unknown_ns", "CPU elsewhere in CUDA's libraries"),
    _count("waits", "waits for the GPU, at least so many"),
    _count("samples", "samples", "met"),
    _count("waiting_samples", "samples in such a wait", "met_waiting"),
))  # fmt: skip

TALLY = TableSpec("tally", "events counted by tick, process and operation: `events` has a row for each of them", (), (
    *CLOCK,
    made("pid", "INTEGER", "process"),
    made("op", "TEXT", "sched_switch, or the CUDA call by its name in the runtime: cudaStreamSync, cudaDeviceSync (cuCtxSynchronize), "
          "cudaEventSync, cudaMemcpy, cudaMemcpyAsync (HtoD, DtoH, … alike), …"),
    made("times", "INTEGER", "events"),
    made("total_ns", "INTEGER", "their time together, ns: time off a CPU, or in the call"),
    made("max_ns", "INTEGER", "the longest such event, ns"),
))  # fmt: skip

def _times(field: str, words: str) -> tuple[Column, ...]:
    """The sum, median and 99th percentile of a server's times."""
    made = {pct: lambda rows, pct=pct: rows.quantile_s(field, pct / 100) for pct in (50, 99)}
    quantiles = (Column(f"{field}_p{pct}_s", "REAL", f"{pct}th percentile of times {words} since the row before, s", make)
                 for pct, make in made.items())  # fmt: skip
    return _seconds(f"{field}_s", f"{field}_us", f"times {words} together", 1e-6), *quantiles


SERVING = TableSpec("serving", "inference servers by their own metrics: a row for each model of each engine, about once a second",
                    ("servings",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process that started the engine's others; 0 where the user gave the address"),
    *(_gauge(name, "TEXT", words) for name, words in (
        ("family", "vllm, sglang, tgi, llamacpp or triton"), ("address", "where it was asked"), ("engine", "the server's number of it"),
        ("model", "model that it serves"), ("problem", "why there are no values; empty if there are"))),
    Column("dt_s", "REAL", "time since its row before, s", lambda rows: scaled(rows.increment("t_ns"), NS)),
    *(_gauge(name, "INTEGER", words) for name, words in (("running", "requests being worked on"), ("waiting", "requests in the queue"))),
    _gauge("kv_used_pct", "REAL", "memory for keys and values in use, %"),
    *(_count(name, words) for name, words in (
        ("preemptions", "requests that lost their memory"), ("prompt_tokens", "of prompts"), ("generated_tokens", "tokens generated"),
        ("finished", "requests that ended"), ("steps", "forward passes"), ("step_tokens", "tokens (of Triton: requests) in all of these"))),
    *_times("first_token", "to the first token"),
    *_times("per_token", "from one token to the next"),
    *_times("queued", "in the queue"),
    *_times("whole", "of whole requests"),
), keep=read_now)  # fmt: skip
COLLECTIVE = TableSpec("collective", "collectives of a rank by NCCL's Inspector, where a site has it", ("collectives",), (
    *CLOCK, *(_gauge(name, "INTEGER", words) for name, words in (
        ("pid", "rank's process"), ("rank", "in its communicator"), ("ranks", "of it"), ("nodes", "of it"), ("last_us", "the latest's, us"),
        ("size_bytes", "message of the latest, bytes"), ("last_busbw_mb_per_s", "bus bandwidth of the latest, MB/s"))),
    *(_gauge(name, "TEXT", words) for name, words in (
        ("comm", "communicator"), ("name", "its name"), ("coll", "AllReduce, …"), ("algo", "algorithm"), ("proto", "protocol"))),
    *(_count(name, words) for name, words in (("times", "operations read"), ("bytes", "of messages"), ("late", "it came last"),
        ("bus_bytes", "bus bandwidth times time, bytes"), ("compared", "of which all ranks' times are known"))),
    _truth("of_means", "1: means of all since the dump before (Prometheus text), which are not counted"),
    _seconds("time_s", "time_us", "execution times", 1e-6), _seconds("awaited_s", "awaited_us", "others' waits for it", 1e-6),
), keep=read_now)  # fmt: skip

DRIVER_ERROR = TableSpec("driver_error", "errors that NVIDIA's driver reports in the kernel's log, since the boot: a row for each that "
                         "has come", ("driver_errors",), (
    *CLOCK,
    _gauge("kind", "TEXT", "xid (of a GPU) or sxid (of an NVSwitch)"),
    _gauge("device", "TEXT", "PCI address"),
    _gauge("number", "INTEGER", "number of the Xid or SXid"),
    Column("meaning", "TEXT", "what that Xid means",
           lambda rows: [meaning_of(number) if kind == XID else None
                         for kind, number in zip(rows.gauge("kind"), rows.gauge("number"), strict=True)]),
    _gauge("link", "INTEGER", "link of the NVSwitch"),
    _truth("fatal", "1: the driver calls the SXid fatal"),
    _gauge("process_pid", "INTEGER", "process whose work met it", "pid"),
    _gauge("process", "TEXT", "that one's name"),
    _gauge("text", "TEXT", "the driver's words"),
    _truth("old", "1: it came before gputop began to watch, and not since"),
    _gauge("times", "INTEGER", "how often it has come, as far as the log reaches back"),
    _gauge("logged_ns", "INTEGER", "its time in the log, about CLOCK_MONOTONIC ns"),
), keep=read_now)  # fmt: skip

TABLES = {spec.name: spec for spec in (
    GPU, PROC, SYNC, COPY, THREAD_CALL, PREEMPT, WAKEUP, PROCESS, INCIDENT, LEDGER, MEMBER, STACK, MARK, GAP, HOST, CPU, DISK, NET, RDMA,
    CGROUP, HARDWARE, NIC, FILE_SYSTEM, GPU_PROCESS, LAUNCH, MAIN, TALLY, SERVING, COLLECTIVE,
    TRACE, KERNEL, DRIVER_ERROR, RUNS,
)}  # fmt: skip
