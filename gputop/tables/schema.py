"""The tables and their columns: name, type, unit and meaning, and how each is made from a block's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from math import isfinite
from typing import Any

from msgspec import Struct

from gputop.tables.rows import Rows
from gputop.tables.told import Told

NS = 1e-9
SYNC_WORD = "ynchronize"
"""What the names of CUDA's synchronize calls have in common."""


class Column(Struct, frozen=True):
    """A column; ``make`` gives its values, one per row, in order of subjects."""

    name: str
    type: str
    help: str
    make: Callable[[Rows], Sequence[Any]]
    adds_up: bool = False
    """Whether readings of one tick are summed up to its row; else the last one stands in it."""


class TableSpec(Struct, frozen=True):
    """A table. ``path`` is where its rows stand in a frame; empty for tables that are made otherwise."""

    name: str
    help: str
    path: tuple[str, ...]
    columns: tuple[Column, ...]
    keep: Callable[[Rows], Sequence[Any] | None] | None = None
    """Which rows belong to it, None for all."""
    own_time: bool = False
    """Whether a row's time is its own ``t_ns``, not that of the tick that it was told in."""


def _gauge(name: str, type_: str, help_: str, field: str = "") -> Column:
    return Column(name, type_, help_, lambda rows: _measured(rows.gauge(field or name)) if type_ == "REAL" else rows.gauge(field or name))


def _measured(column: Sequence[Any]) -> Sequence[Any]:
    """What is no number, as older recordings have some, was not measured."""
    return [value if value is None or isfinite(value) else None for value in column]


def _count(name: str, help_: str, field: str = "") -> Column:
    return Column(name, "INTEGER", f"{help_}, in the tick", lambda rows: rows.increment(field or name), adds_up=True)


def _seconds(name: str, field: str, help_: str) -> Column:
    return Column(name, "REAL", f"{help_}, s in the tick", lambda rows: rows.scaled(field, NS), adds_up=True)


def _name(name: str, field: str, of: str) -> Column:
    return Column(name, "TEXT", f"name of the {of}", lambda rows: [rows.known.name(pid) for pid in rows.gauge(field)])


def _role(rows: Rows) -> Sequence[Any]:
    roles = rows.known.roles()
    return [role.kind if (role := roles.get(pid)) else "bystander" for pid in rows.gauge("pid")]


def _offcpu(rows: Rows) -> Sequence[Any]:
    pairs = zip(rows.increment("t_ns"), rows.increment("oncpu_ns"), strict=True)
    return [None if span is None or ran is None else max(0, span - ran) * NS for span, ran in pairs]


def _read_now(rows: Rows) -> Sequence[Any] | None:
    """A key frame tells of everybody; what it did not read itself was read before it began."""
    if not rows.known.key_ns:
        return None
    slack = rows.known.header.interval_ns // 2
    return [read_ns >= tick - slack for read_ns, tick in zip(rows.gauge("t_ns"), rows.ticks, strict=True)]


def _told(rows: Rows, told: Told) -> Sequence[Any]:
    """What the probe tells of each row's process; rows that are not kept (see `_read_now`) do not ask."""
    return told.column(rows.ticks, rows.gauge("pid"), _read_now(rows) or repeat(True))


def _mean_ms(rows: Rows) -> Sequence[Any]:
    pairs = zip(rows.increment("total_ns"), rows.increment("count"), strict=True)
    return [spent / calls / 1e6 if spent is not None and calls else None for spent, calls in pairs]


def _victim_pid(rows: Rows) -> Sequence[Any]:
    return [rows.known.pid_of.get(tid) for tid in rows.gauge("victim_tid")]


def _wakee_pid(rows: Rows) -> Sequence[Any]:
    return [rows.known.pid_of.get(tid) for tid in rows.gauge("wakee_tid")]


def _peak_ms(field: str) -> Callable[[Rows], Sequence[Any]]:
    return lambda rows: [value / 1e6 for value in rows.gauge(field)]


CLOCK = (
    Column("t_ns", "INTEGER", "time of the tick, CLOCK_MONOTONIC ns", lambda rows: rows.ticks),
    Column("unix_s", "REAL", "time of the tick, s since 1970", lambda rows: rows.dates()),
    Column("t_s", "REAL", "time of the tick, s since the recording began", lambda rows: rows.at(rows.known.start_ns)),
)  # fmt: skip

GPU = TableSpec("gpu", "what was read of each GPU in each tick; NULL is not read in this tick", ("gpus",), (
    *CLOCK,
    _gauge("gpu", "INTEGER", "index", "index"),
    _gauge("util_pct", "REAL", "time in which a kernel ran or a copy, %"),
    _gauge("mem_util_pct", "REAL", "time in which memory was read or written, %"),
    _gauge("mem_used_bytes", "INTEGER", "memory in use, bytes"),
    _gauge("power_w", "REAL", "power, W"),
    Column("energy_j", "REAL", "energy, J since it was read last, every few seconds", lambda rows: rows.scaled("energy_mj", 1e-3),
           adds_up=True),
    _gauge("sm_clock_mhz", "INTEGER", "SM clock, MHz"),
    _gauge("mem_clock_mhz", "INTEGER", "memory clock, MHz"),
    _gauge("throttle_mask", "INTEGER", "why clocks are held down, NVML's bits"),
    _gauge("gr_active_pct", "REAL", "time in which any kernel ran, copies not counted, %"),
    _gauge("sm_active_pct", "REAL", "SMs with a warp on them, %"),
    _gauge("sm_occupancy_pct", "REAL", "warps of those possible, %"),
    _gauge("tensor_active_pct", "REAL", "tensor pipes busy, %"),
    _gauge("dram_active_pct", "REAL", "DRAM busy, %"),
    _gauge("temp_c", "REAL", "temperature, degrees C"),
    _count("pcie_tx_bytes", "sent to the host, bytes"),
    _count("pcie_rx_bytes", "received from the host, bytes"),
    _gauge("pcie_tx_bytes_per_s", "REAL", "sent to the host where only the rate is known, bytes/s"),
    _gauge("pcie_rx_bytes_per_s", "REAL", "received from the host where only the rate is known, bytes/s"),
    _count("nvlink_tx_bytes", "sent over NVLink, bytes"),
    _count("nvlink_rx_bytes", "received over NVLink, bytes"),
    _seconds("nvml_s", "nvml_ns", "time spent in NVML calls for it"),
))  # fmt: skip

PROC = TableSpec("proc", "each process in each tick it was read in: up to 16 trainers and workers in all, others less often; what one did "
                 "between its last row and its end is in none", ("procs",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    Column("role", "TEXT", "trainer, worker, helper or bystander", _role),
    Column("dt_s", "REAL", "time since its row before, s", lambda rows: rows.scaled("t_ns", NS)),
    _gauge("state", "TEXT", "R running or runnable, S sleeping, D disk, T stopped, Z ended; main thread"),
    Column("cpu_s", "REAL", "CPU of all its threads, s since it was read (0.2 s; rows between have 0), in clock ticks", lambda rows: [
        value if value is None else value * NS for value in rows.total("utime_ns", "stime_ns")]),
    _seconds("oncpu_s", "oncpu_ns", "CPU of its main thread"),
    _seconds("runq_s", "run_delay_ns", "main thread wanted a CPU and had none"),
    Column("offcpu_s", "REAL", "main thread was not on a CPU, s in the tick", _offcpu),
    Column("switches", "INTEGER", "context switches of its main thread since they were read (0.2 s; rows between have 0)",
           lambda rows: rows.total("vol", "invol")),
    Column("thread_switches", "INTEGER", "context switches of all its threads since its row before, in its last row until it ended; "
           "counted every 0.2 to 1.2 s and spread evenly over that (sched probe); NULL is not counted, or not yet",
           lambda rows: _told(rows, rows.known.switches)),
    _count("vol", "voluntary context switches of its main thread"),
    _count("invol", "involuntary context switches of its main thread"),
    Column("stall_ms", "REAL", "longest single wait for a CPU of any of its threads since its row before, ms (sched probe; of who is no "
           "trainer or worker one may stand in two rows); NULL where none was told of",
           lambda rows: _told(rows, rows.known.stalls)),
    _gauge("rss_bytes", "INTEGER", "resident memory, bytes"),
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
), _read_now)  # fmt: skip

_CALLS = (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _name("name", "pid", "process"),
    _gauge("call", "TEXT", "CUDA entry point"),
    _count("calls", "calls", "count"),
    Column("total_ms", "REAL", "time in them, ms in the tick", lambda rows: rows.scaled("total_ns", 1e-6)),
    Column("mean_ms", "REAL", "mean time of a call in the tick, ms", _mean_ms),
    Column("max_ms", "REAL", "longest call that ended in the tick, ms, rounded up by 3 % at most", _peak_ms("max_ns")),
)

SYNC = TableSpec("sync", "CUDA synchronize calls of each process (uprobes)", ("probes", "calls"), _CALLS,
                 lambda rows: [SYNC_WORD in call for call in rows.gauge("call")])  # fmt: skip
COPY = TableSpec("copy", "the other CUDA calls that are probed: memory copies", ("probes", "calls"),
                 (*_CALLS, _count("bytes", "moved, bytes")),
                 lambda rows: [SYNC_WORD not in call for call in rows.gauge("call")])  # fmt: skip

PREEMPT = TableSpec("preempt", "who ran on a CPU while a thread waited for it (sched probe)", ("probes", "preempts"), (
    *CLOCK,
    _gauge("victim_tid", "INTEGER", "thread that waited"),
    Column("victim_pid", "INTEGER", "its process", _victim_pid),
    Column("victim", "TEXT", "name of that process", lambda rows: [rows.known.name(pid) for pid in _victim_pid(rows)]),
    _gauge("culprit_tid", "INTEGER", "thread that ran"),
    _gauge("culprit_pid", "INTEGER", "its process"),
    _name("culprit", "culprit_pid", "process that ran"),
    _seconds("lost_s", "ns", "how long"),
    _count("times", "how often"),
))  # fmt: skip

WAKEUP = TableSpec("wakeup", "who ended a sleep of whom (sched probe)", ("probes", "wakeups"), (
    *CLOCK,
    _gauge("wakee_tid", "INTEGER", "thread that slept"),
    Column("wakee_pid", "INTEGER", "its process", _wakee_pid),
    Column("wakee", "TEXT", "name of that process", lambda rows: [rows.known.name(pid) for pid in _wakee_pid(rows)]),
    _gauge("waker_tid", "INTEGER", "thread that woke it"),
    _gauge("waker_pid", "INTEGER", "its process"),
    _name("waker", "waker_pid", "process that woke it"),
    _count("times", "how often"),
    _seconds("wait_s", "wait_ns", "the sleeps that it ended"),
))  # fmt: skip

STACK = TableSpec("stack", "stacks that were taken", ("stacks",), (
    *CLOCK,
    _gauge("pid", "INTEGER", "process"),
    _gauge("tid", "INTEGER", "thread"),
    _name("name", "pid", "process"),
    Column("python", "TEXT", "Python frames, innermost first, a line each", lambda rows: ["\n".join(s) for s in rows.gauge("python")]),
    Column("kernel", "TEXT", "kernel frames, innermost first, a line each", lambda rows: ["\n".join(s) for s in rows.gauge("kernel")]),
    _gauge("wait", "TEXT", "what it waits for"),
    _gauge("syscall", "TEXT", "system call it sleeps in"),
    _gauge("wchan", "TEXT", "kernel function it sleeps in"),
    _gauge("error", "TEXT", "why the stack could not be read"),
    _gauge("incident", "TEXT", "the incident it was taken for"),
))  # fmt: skip

MARK = TableSpec("mark", "markers of the job (gputop mark), and of gaps (set by the recorder); the time is when", ("marks",), (
    *CLOCK, _gauge("text", "TEXT", "the marker"),
), own_time=True)  # fmt: skip


def _made(name: str, type_: str, help_: str) -> Column:
    """A column of a table that is not made from rows."""
    return Column(name, type_, help_, lambda rows: [None] * rows.count)


PROCESS = TableSpec("process", "each process that was seen, once; t_ns is when it was first told of", (), (
    *CLOCK,
    _made("pid", "INTEGER", "process"),
    _made("ppid", "INTEGER", "its parent"),
    _made("start_ticks", "INTEGER", "when it began, clock ticks since boot; with the pid it names a process for ever"),
    _made("name", "TEXT", "its name (comm)"),
    _made("cmdline", "TEXT", "its command line"),
    _made("user", "TEXT", "its user"),
    _made("role", "TEXT", "trainer, worker, helper or bystander"),
    _made("trainer_pid", "INTEGER", "the trainer it works for"),
    _made("rank", "INTEGER", "a trainer's rank"),
    _made("label", "TEXT", "what the screen and explain call it"),
    _made("cgroup", "TEXT", "its cgroup"),
    _made("cpus_allowed", "TEXT", "CPUs it may run on"),
))  # fmt: skip

INCIDENT = TableSpec("incident", "what the diagnosis finds, one row per episode; t_ns is its beginning", (), (
    *CLOCK,
    _made("id", "INTEGER", "number"),
    _made("dt_s", "REAL", "how long it lasted, s"),
    _made("lasts", "INTEGER", "1 if it had not ended when the recording did"),
    _made("symptom", "TEXT", "what the GPU experienced"),
    _made("cause", "TEXT", "why"),
    _made("severity", "TEXT", "info, low, medium or high"),
    _made("confidence", "REAL", "0 to 1"),
    _made("trainer_pid", "INTEGER", "the trainer"),
    _made("gpu", "INTEGER", "the GPU"),
    _made("lost_s", "REAL", "GPU time lost to it, s; where jobs share a GPU each has lost the whole, so of these no sum is made "
          "(the ledger of `gputop explain` shares it out)"),
    _made("headline", "TEXT", "in a sentence"),
    _made("detail", "TEXT", "and one more"),
    _made("victims", "TEXT", "who suffered, JSON"),
    _made("culprits", "TEXT", "who took what they lacked, with CPU seconds, JSON"),
    _made("evidence", "TEXT", "the numbers behind it, JSON"),
    _made("fixes", "TEXT", "what to do, JSON"),
))  # fmt: skip

GAP = TableSpec("gap", "stretches of which nothing is known; t_ns is the last tick before", (), (
    *CLOCK,
    _made("dt_s", "REAL", "how long, s"),
    _made("missed", "INTEGER", "beats that the collector skipped"),
    _made("reason", "TEXT", "why"),
))  # fmt: skip

TABLES = {spec.name: spec for spec in (GPU, PROC, SYNC, COPY, PREEMPT, WAKEUP, PROCESS, INCIDENT, STACK, MARK, GAP)}
