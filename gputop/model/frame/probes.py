"""What the eBPF probes counted."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gputop.model.frame.bounds import BOUNDED


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
    """Longest single wait for a CPU since it was told of before, exact; one still going on counts with its length so far. Of threads that
    come once a second it may be told twice."""
    hist: dict[int, int] = {}
    """Bucket (`gputop.model.histogram`) -> number of waits for a CPU that ended, cumulative; threads of hot processes only."""
    start_ns: int = 0
    """CLOCK_MONOTONIC when it was born, or first seen where that was before the probe: another value is another thread."""
    state: str = ""
    """``running``, ``runnable``, ``sleeping``, ``uninterruptible`` or ``dead``."""
    comm: str = ""
    """Its name when it died; empty before (see /proc)."""


class Preempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``culprit`` ran on the CPU that ``victim``, a thread of a hot process, was preempted on and still wanted (cumulative).

    Culprit 0 is nobody: the CPU was idle, as when a cgroup quota throttles the victim. Where thousands meet, a pair that meets no more
    is forgotten, and begins at 0 again when it does.
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
    """Bucket (`gputop.model.histogram`) -> calls, cumulative."""
    bytes: int | None = None
    """Sum of the byte counts asked for, None for calls that have none among their arguments."""
    sums: dict[int, int] = {}
    """Bucket -> ns of the calls in it, cumulative: gives quantiles as the mean of their bucket."""
    inflight_ns: int = 0
    """How long the longest call that has not returned yet has lasted, 0 if there is none."""


class LaunchRate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Kernel launches of one process (uprobe on cuLaunchKernel), counted for some hundredths of a second every other second."""

    pid: int
    per_s: float
    """Over the last few counts."""


class MainSamples(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the main thread of a trainer was met at in CUDA's libraries, on a CPU (perf's task clock; cumulative, in ns of CPU)."""

    pid: int
    watched_ns: int = 0
    """Time in which it was sampled: all else is a share of that."""
    sync_ns: int = 0
    """Spinning in synchronize calls, and in copies from the GPU."""
    copy_ns: int = 0
    """In copies to the GPU."""
    launch_ns: int = 0
    """Launching kernels."""
    waits: int = 0
    """How often it was met in a wait having been met elsewhere before: so many waits at least."""
    met: int = 0
    """Samples taken of it."""
    met_waiting: int = 0
    unknown_ns: int = 0
    """In these libraries, in none of the functions that they export."""


class Probes(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the eBPF maps held at ``t_ns``; threads and pairs that did not change since the last frame are left out."""

    t_ns: int
    threads: Annotated[list[SchedThread], BOUNDED] = []
    preempts: Annotated[list[Preempt], BOUNDED] = []
    wakeups: Annotated[list[Wakeup], BOUNDED] = []
    calls: Annotated[list[CudaCall], BOUNDED] = []
    gone: Annotated[list[int], BOUNDED] = []
    """tids whose entries were pruned."""
    map_used: dict[str, int] = {}
    map_size: dict[str, int] = {}
    lost: dict[str, int] = {}
    """Map name -> updates that failed (full map), cumulative."""
    drain_ns: int = 0
    run_ns: int | None = None
    """CPU the probes' programs took, cumulative, where the kernel counts it."""
    launches: Annotated[list[LaunchRate], BOUNDED] = []
    """All that are known, after each count."""
    forgotten: Annotated[list[int], BOUNDED] = []
    """Pairs of ``preempts`` that stand no more: the victim's tid, and above its 32 bits the culprit's."""
