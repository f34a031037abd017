"""Wakers of the threads of trainers and workers over the window (eBPF)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from gputop.diagnosis.facts import waits
from gputop.model.board import Board
from gputop.model.frame import SchedThread, ThreadCalls, Wakeup
from gputop.model.syscalls import syscall_names

_KINDS = {
    "futex": waits.LOCK, "ipc": waits.LOCK, "timer": waits.TIMER, "signal": waits.TIMER, "child": waits.CHILD, "pidfd": waits.CHILD,
    "fault": waits.DISK, "memory": waits.DISK, "filesystem": waits.DISK, "io_uring": waits.DISK, "file": waits.DISK,
    "disk": waits.DISK, "pipe": waits.PIPE, "unix": waits.PIPE, "terminal": waits.PIPE, "network": waits.NETWORK,
    "several": waits.POLL, "epoll": waits.POLL, "eventfd": waits.POLL, "nvidia": waits.DRIVER, "device": waits.DRIVER,
}  # fmt: skip
"""`gputop.model.frame.Wakeup.kind` -> the diagnosis' word for that wait."""

_CALLS = {"flock": waits.LOCK, "fcntl": waits.LOCK, "vfork": waits.CHILD, "clone": waits.CHILD, "clone3": waits.CHILD}
"""System calls with a more precise meaning than their kind: a lock of a file; a parent sleeps in vfork, as for a disk, until its child runs
a program."""

_K = TypeVar("_K")
_V = TypeVar("_V")

LEAST = 0.001  # share of the window that a thread must have slept until a waker woke it, for the waker to count (2.5 ms of 2.5 s)


class Wake(NamedTuple):
    """Sleeps of one thread that one process ended, in one kind of wait."""

    pid: int  # of the waker; 0: an interrupt
    tid: int  # 0: an interrupt
    kind: str  # a word of `facts.waits`
    share: float  # of the window, asleep
    per_s: float  # sleeps a second
    address: int = 0  # of the futex; 0: none


class ThreadTime(NamedTuple):
    """One thread over the window, by the sched probe."""

    pid: int
    run: float  # on-CPU share
    runnable: float  # run-queue share
    asleep: float


class Woken:
    """Wakers of each thread's sleeps in the window; false without eBPF."""

    def __init__(self, by_tid: dict[int, list[Wake]] | None = None) -> None:
        self.by_tid = by_tid or {}

    def __bool__(self) -> bool:
        return bool(self.by_tid)

    def by_pid(self, tid: int) -> dict[int, float]:
        """Pid -> share of the window that the thread slept until a thread of the process woke it."""
        found: dict[int, float] = {}
        for wake in self.by_tid.get(tid, ()):
            found[wake.pid] = found.get(wake.pid, 0.0) + wake.share
        return found

    def by_others(self, pid: int) -> dict[int, float]:
        """`by_pid` of a main thread, plus the wakers of own threads that then woke it: these threads receive on its behalf."""
        found = self.by_pid(pid)
        for own in self.by_tid.get(pid, ()):
            theirs = [one for one in self.by_tid.get(own.tid, ()) if one.tid != pid] if own.pid == pid else []
            slept = sum(one.share for one in theirs)
            for one in theirs:
                if one.pid not in (0, pid):
                    found[one.pid] = found.get(one.pid, 0.0) + own.share * one.share / slept
        return found

    def by_own(self, pid: int) -> tuple[float, float] | None:
        """(share of the window that the main thread slept until threads of its own process woke it, such sleeps per second); None without
        eBPF."""
        own = [wake for wake in self.by_tid.get(pid, ()) if wake.pid == pid]
        return (sum(wake.share for wake in own), sum(wake.per_s for wake in own)) if self else None


class WakeTrack:
    """Counters of the window: one shallow copy of the board's tables per feed, and what the board has dropped since."""

    def __init__(self) -> None:
        self._points: deque[tuple[int, dict[Any, Wakeup], dict[int, SchedThread], dict[Any, ThreadCalls]]] = deque()
        self._ended: deque[tuple[int, dict[Any, Wakeup], dict[int, SchedThread]]] = deque()
        """(when it was missed, last counters) of threads that have ended: their part in the window counts."""
        self._machine = ""

    def push(self, board: Board, oldest_ns: int) -> None:
        """Add the board's counters and forget those from before ``oldest_ns``."""
        self._machine = board.header.machine
        if board.probed_ns and (not self._points or self._points[-1][0] != board.probed_ns):
            if self._points:
                _, wakes, threads, _ = self._points[-1]
                self._ended.append((board.probed_ns, _without(wakes, board.wakeups), _without(threads, board.threads)))
            self._points.append((board.probed_ns, dict(board.wakeups), dict(board.threads), dict(board.thread_calls)))
        while len(self._points) > 2 and self._points[1][0] <= oldest_ns:
            self._points.popleft()
        while self._ended and self._ended[0][0] <= self._points[0][0]:
            self._ended.popleft()

    def by_thread(self) -> dict[int, list[Wake]]:
        """Tid -> its wakers; empty without eBPF. Many threads of one process that each woke it seldom become one waker, with tid 0."""
        if len(self._points) < 2:
            return {}
        (began_ns, before, *_), (ended_ns, now, *_) = self._points[0], self._points[-1]
        ns = max(1, ended_ns - began_ns)
        found: dict[int, list[Wake]] = {}
        seldom: dict[tuple[int, int, str, int], list[float]] = {}
        for key, wake in chain(*(wakes.items() for _, wakes, _ in self._ended), now.items()):
            old = before.get(key)
            if old is wake:
                continue
            since = old if old is not None and old.times <= wake.times else None
            slept_ns, times = wake.wait_ns - (since.wait_ns if since else 0), wake.times - (since.times if since else 0)
            share, kind = min(1.0, slept_ns / ns), kind_of(wake, self._machine)
            if wake.waker_pid == 0 and times > 0 and kind in (waits.PIPE, waits.POLL) and _ran_out(slept_ns / times):
                kind = waits.QUEUE
            if share >= LEAST:
                one = Wake(wake.waker_pid, wake.waker_tid, kind, share, times * 1e9 / ns, wake.address)
                found.setdefault(wake.wakee_tid, []).append(one)
            else:
                sums = seldom.setdefault((wake.wakee_tid, wake.waker_pid, kind, wake.address), [0.0, 0.0])
                sums[0] += share
                sums[1] += times * 1e9 / ns
        for (wakee, pid, kind, address), (share, per_s) in seldom.items():
            if share >= LEAST:
                found.setdefault(wakee, []).append(Wake(pid, 0, kind, min(1.0, share), per_s, address))
        return found

    def threads(self) -> dict[int, ThreadTime]:
        """Tid -> its time; empty without eBPF."""
        if len(self._points) < 2:
            return {}
        (began_ns, _, before, _), (ended_ns, _, now, _) = self._points[0], self._points[-1]
        ns, found = max(1, ended_ns - began_ns), {}
        for tid, new in chain(*(threads.items() for _, _, threads in self._ended), now.items()):
            old = before.get(tid)
            if old is new:
                continue
            run, runnable, slept = new.oncpu_ns, new.runnable_ns, new.sleeping_ns + new.uninterruptible_ns
            if old is not None and old.start_ns == new.start_ns:
                run, runnable = run - old.oncpu_ns, runnable - old.runnable_ns
                slept -= old.sleeping_ns + old.uninterruptible_ns
            elif new.start_ns < began_ns:
                continue
            found[tid] = ThreadTime(new.pid, min(1.0, max(0, run) / ns), min(1.0, max(0, runnable) / ns), min(1.0, max(0, slept) / ns))
        return found

    def main_calls(self) -> dict[int, float]:
        """Pid -> the main thread's part of the time in CUDA calls that wait or copy; empty without eBPF."""
        if len(self._points) < 2:
            return {}
        before, now = self._points[0][3], self._points[-1][3]
        total: dict[int, int] = {}
        main: dict[int, int] = {}
        for key, calls in now.items():
            spent = calls.total_ns - (before[key].total_ns if key in before and before[key].total_ns <= calls.total_ns else 0)
            total[calls.pid] = total.get(calls.pid, 0) + spent
            if calls.tid == calls.pid:
                main[calls.pid] = main.get(calls.pid, 0) + spent
        return {pid: main.get(pid, 0) / ns for pid, ns in total.items() if ns > 0}


def _without(old: dict[_K, _V], now: Mapping[_K, object]) -> dict[_K, _V]:
    """Entries without their key in ``now``."""
    return {key: old[key] for key in old.keys() - now.keys()}


def _ran_out(slept_ns: float) -> bool:
    """True if sleeps of this mean length, ended by no process, are torch's polls of an empty queue; a timer is up to 50 ms late (guess)."""
    return waits.is_torch_poll(slept_ns / 1e6) or waits.is_torch_poll(slept_ns / 1e6 - 50.0)


@lru_cache
def _by_call(machine: str) -> dict[int, str]:
    return {number: _CALLS[name] for number, name in syscall_names(machine).items() if name in _CALLS}


def kind_of(wake: Wakeup, machine: str = "") -> str:
    """The diagnosis' word for what the sleeper waited for; system calls have the numbers of ``machine`` (``uname -m``)."""
    if (kind := _by_call(machine).get(wake.call)) is not None:
        return kind
    if wake.call == -1 or (not wake.kind and wake.uninterruptible):
        return waits.DISK
    return _KINDS.get(wake.kind, waits.UNKNOWN)
