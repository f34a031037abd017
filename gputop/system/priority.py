"""Scheduling priority for gputop itself: processes that keep a training from the CPUs keep the collector from them too."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

LOADER, WATCHER, BEAT = 1, 2, 3  # SCHED_RR priorities: the loader of the probes; the screen and the recorder; the collector's beat


def raise_priority(rank: int) -> str:
    """Ask for SCHED_RR ``rank``, else nice -20, for this thread and its children; returns what was granted.

    SCHED_RR is the only way past the autogroups of other sessions. Niceness helps within the own session.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(rank))
        return f"SCHED_RR {rank}"
    except OSError:
        pass
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        return "nice -20"
    except OSError:
        return "ordinary: raising it needs CAP_SYS_NICE"


MOST_SHARE = 0.3  # of one CPU: a beat that takes more gives its priority up (guess; it takes 0.01 to 0.07, measured: make bench)
MOST_WATCHING = 0.6  # of one CPU, for the screen and the recorder: their start takes a second of CPU time (guess)
SPAN_NS = 5_000_000_000  # ns over which the share is measured
CALM_NS = 60_000_000_000  # ns after which it asks for the priority again, if its share is under half of the limit
_STEP_NS = SPAN_NS // 10  # ns between two readings of the CPU time
_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)  # niceness that this process was started with


class OwnPriority:
    """This process's scheduling priority, given up while the process takes more than ``share`` of one CPU.

    Otherwise another user could start thousands of processes, and gputop, reading them all, would take the CPU from other users.
    """

    def __init__(self, rank: int, share: float, ask: Callable[[int], str] = raise_priority) -> None:
        self.granted = ""  # the priority now, in words; empty before `request`
        self.reason = ""  # why it was given up; empty if it was not
        self._rank, self._share = rank, share
        self._ask = ask
        self._used: deque[tuple[int, int]] = deque()  # (CLOCK_MONOTONIC, CPU time of this process) in ns, one a step of the last `SPAN_NS`
        self._given_up_ns = 0

    def request(self) -> None:
        """Ask for the priority, for all threads of this process."""
        self.granted = self._ask(self._rank)
        _share_with_threads()

    def check(self, now_ns: int, used_ns: int | None = None) -> bool:
        """Compare the CPU time used so far with the limit; returns whether the priority changed. Times in ns."""
        if not self.reason and (not self.granted or self.granted.startswith("ordinary")):
            return False
        used_ns = time.process_time_ns() if used_ns is None else used_ns
        if not self._used or now_ns - self._used[-1][0] >= _STEP_NS:
            self._used.append((now_ns, used_ns))
        while len(self._used) > 1 and self._used[1][0] <= now_ns - SPAN_NS:
            self._used.popleft()
        share = (used_ns - self._used[0][1]) / max(SPAN_NS, now_ns - self._used[0][0])
        if not self.reason and share > self._share:
            self._give_up(now_ns, share)
            return True
        if self.reason and now_ns - self._given_up_ns >= CALM_NS and 2 * share <= self._share:
            self.reason, self.granted = "", self._ask(self._rank)
            _share_with_threads()
            return True
        return False

    def _give_up(self, now_ns: int, share: float) -> None:
        self._given_up_ns = now_ns
        self.reason = f"it took {share:.1%} of a CPU over {SPAN_NS // 10**9} s, more than {self._share:.0%}: {self.granted} is given up"
        self.granted = "ordinary"
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        _share_with_threads()


SCREEN_PRIORITY = OwnPriority(WATCHER, MOST_WATCHING)  # of the screen or the recorder: `gputop.cli` requests it, each frame checks it


def _share_with_threads() -> None:
    """Give all threads of this process the scheduling policy, priority and niceness of the calling thread."""
    policy, rank, niceness = os.sched_getscheduler(0), os.sched_getparam(0), os.getpriority(os.PRIO_PROCESS, 0)
    for tid in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # the thread has just ended
            os.sched_setscheduler(tid, policy, rank)
            os.setpriority(os.PRIO_PROCESS, tid, niceness)


def lowered_to(rank: int) -> dict[str, Any]:
    """Arguments of `os.posix_spawn` that give a child SCHED_RR ``rank``; none if this process does not have SCHED_RR."""
    ours = os.sched_getscheduler(0) == os.SCHED_RR
    return {"scheduler": (os.SCHED_RR, os.sched_param(rank))} if ours else {}


@contextmanager
def ordinary_priority() -> Iterator[None]:
    """Give children that this thread starts within the block ordinary scheduling: the user's command must not have gputop's priority."""
    policy, rank = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, rank)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, rank)
