"""Counters of the eBPF probes, and perf's samples of main threads."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.stream import BOUNDED


class SchedThread(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thread's counters in the sched probe, cumulative; a state that still lasts counts up to the frame's time.

    ``oncpu_ns`` and ``runnable_ns`` are the scheduler's sums since the thread was born (as in schedstat); the others count from the moment
    that the probe first saw the thread. Threads of hot processes (trainers and workers) come in each frame in which they changed, others
    once a second.
    """

    tid: int
    pid: int
    oncpu_ns: int
    runnable_ns: int  # waiting for a CPU after a wake-up or a preemption
    preempted_ns: int  # the part of ``runnable_ns`` that began with a preemption
    sleeping_ns: int
    uninterruptible_ns: int
    vol: int
    invol: int
    max_run_delay_ns: int
    """The longest single wait for a CPU since the thread's previous sample; a wait that lasts counts so far. For threads that come once a
    second the same wait may appear twice."""
    hist: dict[int, int] = {}  # bucket (`gputop.model.histogram`) -> waits for a CPU that ended, cumulative; threads of hot processes only
    start_ns: int = 0
    """CLOCK_MONOTONIC of its birth, or of its first sight if it is older than the probe. Another value means another thread."""
    state: str = ""  # ``running``, ``runnable``, ``sleeping``, ``uninterruptible`` or ``dead``
    comm: str = ""  # its name when it died; empty while it lives (see /proc)


class Preempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Time (ns, cumulative) that ``culprit`` ran on the CPU where ``victim``, a thread of a hot process, was preempted and still runnable.

    Culprit 0: the CPU was idle, as when a cgroup quota throttles the victim. With thousands of pairs, one that no longer meets is
    forgotten, and begins at 0 when it meets again.
    """

    victim_tid: int
    culprit_tid: int
    culprit_pid: int
    ns: int
    times: int  # number of times that the culprit ran while the victim waited


WAKEUP_KEY = ("wakee_tid", "waker_tid", "call", "kind", "address", "timed", "uninterruptible", "shared", "inherits")
"""Fields of `Wakeup` that identify a counter; new ones come last."""


class Wakeup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How often ``waker`` ended a sleep of ``wakee``, a thread of a hot process, in one kind of wait (cumulative).

    Waker 0: an interrupt (timer, device). ``kind`` is what the call waited for: ``futex``, ``timer``, ``child``, ``signal``, ``fault`` (a
    page), ``memory`` (the map), ``filesystem``, ``io_uring``, ``ipc`` (System V and message queues), ``several`` descriptors; or
    the kind of the one descriptor: ``pipe``, ``unix`` and ``network`` (sockets), ``file``, ``disk`` (a block device), ``nvidia``,
    ``terminal``, ``device``, ``eventfd``, ``epoll``, ``pidfd``, ``anonymous``. Empty: not known.
    """

    wakee_tid: int
    waker_tid: int
    waker_pid: int
    times: int
    wait_ns: int  # total length of the sleeps
    call: int = -2  # number of the system call that it slept in; -1: none, a page fault; -2: not known
    kind: str = ""
    address: int = 0  # of the futex in ``wakee``'s memory; 0: none, or one of many
    timed: bool = False  # the call had a time limit
    uninterruptible: bool = False
    shared: bool = False  # a futex of several processes: in each its address is another
    inherits: bool = False  # a futex that lends its owner the sleeper's priority


class CudaCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The calls of one CUDA function by one process (uprobes; cumulative).

    A function that is called very often is counted at random times, since counting slows its caller down; the sums are then estimates.
    """

    pid: int
    call: str
    count: int
    total_ns: int
    max_ns: int  # the longest call since the previous frame
    hist: dict[int, int] = {}  # bucket (`gputop.model.histogram`) -> calls, cumulative
    bytes: int | None = None  # sum of the byte counts among the arguments; None for functions without one
    sums: dict[int, int] = {}  # bucket -> ns of its calls, cumulative: a quantile is then the mean of its bucket
    inflight_ns: int = 0  # length so far of the longest call that has not returned; 0 without one
    share: float = 1.0  # share of the time in which the function is counted; below 1 the sums are estimated from that part


class ThreadCalls(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The calls of one CUDA function by one thread (uprobes; cumulative).

    They are the part of the process's `CudaCall` that was seen, without estimates. With thousands of threads, the ones with the oldest
    calls are forgotten and begin at 0.
    """

    tid: int
    call: str
    pid: int
    count: int
    total_ns: int


class LaunchRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Kernel launches of one process (uprobe on cuLaunchKernel), counted for some milliseconds at a time, about every other second."""

    pid: int
    per_s: float  # mean of the last few counts


class MainSamples(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Samples of a trainer's main thread in CUDA's libraries (perf's task clock; cumulative, ns of CPU time)."""

    pid: int
    watched_ns: int = 0  # time in which it was sampled; the other times are parts of this
    sync_ns: int = 0  # in synchronize calls that spin, and in copies from the GPU
    copy_ns: int = 0  # in copies to the GPU
    launch_ns: int = 0  # launching kernels
    waits: int = 0  # number of samples in a wait that followed a sample elsewhere: at least this many waits
    met: int = 0  # number of samples
    met_waiting: int = 0
    unknown_ns: int = 0  # in CUDA's libraries, outside of the functions that they export


class Probes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The eBPF maps at ``t_ns``, without threads and pairs that did not change since the previous frame."""

    t_ns: int
    threads: Annotated[list[SchedThread], BOUNDED] = []
    preempts: Annotated[list[Preempt], BOUNDED] = []
    wakeups: Annotated[list[Wakeup], BOUNDED] = []
    calls: Annotated[list[CudaCall], BOUNDED] = []
    gone: Annotated[list[int], BOUNDED] = []  # tids whose entries were removed
    map_used: dict[str, int] = {}
    map_size: dict[str, int] = {}
    lost: dict[str, int] = {}  # map name -> updates that failed (full map), cumulative
    drain_ns: int = 0
    run_ns: int | None = None  # CPU time of the probes' programs, cumulative; None if the kernel does not count it
    launches: Annotated[list[LaunchRate], BOUNDED] = []  # the rates of all processes, after each count
    forgotten: Annotated[list[int], BOUNDED] = []  # removed pairs of ``preempts``: victim tid + (culprit tid << 32)
    thread_calls: Annotated[list[ThreadCalls], BOUNDED] = []
    share: float = 1.0
    """Share of the time in which context switches are counted; below 1 the sums of threads but for ``oncpu_ns`` and ``runnable_ns``, of
    preemptions and of wake-ups are estimated from that part."""
