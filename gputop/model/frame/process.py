"""Processes and threads as /proc gives them, and their stacks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.frame.bounds import BOUNDED


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
    cmdline: Annotated[list[str], BOUNDED] = []
    """/proc/PID/cmdline, cut to a bounded length; empty for kernel threads."""
    exe: str = ""
    ns_pid: int | None = None
    """Its pid in its own namespace where that differs (NSpid of /proc/PID/status)."""
    cgroup: str = ""
    """Path in the unified hierarchy, or in v1's cpu controller."""
    cpus_allowed: str = ""
    """Cpus_allowed_list of /proc/PID/status, such as ``0-3,8``."""
    env: dict[str, str] = {}
    """Only the variables of `gputop.model.environment.ENV_OF_INTEREST`, where environ is readable."""
    uses_cuda: bool | None = None
    """Maps libcuda or holds /dev/nvidia*; None where that cannot be read."""
    libs: Annotated[list[str], BOUNDED] = []
    """Loader and framework libraries it maps, such as ``torch``, ``jax``, ``tensorflow``, ``dali``."""
    threads: Annotated[list[ThreadInfo], BOUNDED] = []
    """Names of its threads, for trainers and their workers only."""
    wait_unreadable: str = ""
    """Why syscall and wchan of this process cannot be read, empty where they can."""
    sockets: str = ""
    """Of a trainer that sleeps in a poll: ``listening`` where it or a parent in its session has one that listens, ``connected`` where it
    has one to somebody (not a UNIX one), ``none``; empty where that is not known."""
    session: int = 0
    """/proc/PID/stat field 6; 0 is none, or not known."""
    cpu_cgroup: str = ""
    """Path in v1's cpu controller where ``cgroup`` is that of another one; empty where it is the same."""
    policy: int = 0
    """Scheduling policy of its main thread, /proc/PID/stat field 41: 0 ordinary, 1 FIFO, 2 RR, 3 batch, 5 idle, 6 deadline."""
    other_ends: Annotated[list[int], BOUNDED] = []
    """Of a trainer without workers: the pids that hold the other ends of the pipes and sockets that its main thread reads from."""
    read_by: list[int] = []
    """Of a trainer: the pids that hold the other ends of the pipes, FIFOs and sockets that its main thread waited to write to."""


class ThreadSample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread, read with its process for trainers and their workers (/proc/PID/task/TID/{schedstat,stat,status})."""

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
    syscall: int | None = None
    """This and the next two as of a process, of some of those that work: the main thread may wait for one of them."""
    syscall_arg: int | None = None
    wchan: str | None = None


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
    """The argument that tells waits apart: poll's timeout in ms; futex's, -1 for none and 0 for some; otherwise the first argument
    (often a descriptor)."""
    wchan: str | None = None
    swapin_delay_ns: int | None = None
    threads: Annotated[list[ThreadSample], BOUNDED] = []
    """Its threads, main thread included, for trainers and their workers only."""
    kernel_stack: str | None = None
    rchar_bytes: int | None = None
    """/proc/PID/io rchar: bytes asked for by read calls, pipes and sockets and the page cache included."""
    children_ns: int | None = None
    """stat's cutime and cstime: CPU of the children that it has waited for, and of theirs."""
    locked_by: int | None = None
    """Of a trainer or worker that sleeps by a timer or in fcntl or flock: who holds an exclusive lock that it waits for, or on a file that
    it has open (/proc/locks)."""
    exit_code: int | None = None
    """stat field 52 of a zombie: how it ended, as waitpid says (0 is well); None of the living, and where we may not know."""
    unfollowed: int = 0
    """Threads that ran of late and are too many to stand in every sample: their switches are in none of its pairs."""


class Stack(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One thread's stack, taken at ``t_ns``; frames innermost first."""

    pid: int
    tid: int
    t_ns: int
    python: Annotated[list[str], BOUNDED] = []
    kernel: Annotated[list[str], BOUNDED] = []
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
