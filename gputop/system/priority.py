"""A place before busy neighbours for those who watch: where a crowd keeps a training from the CPUs it keeps us from them, too."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

LOADER, WATCHER, BEAT = 1, 2, 3
"""Ranks of SCHED_RR: what loads the probes, a second of work that nobody waits for; the screen and the recorder; before them the beat,
which must be on time."""


def raise_priority(rank: int) -> str:
    """Ask for that place, for this thread and what it starts; says what was granted.

    SCHED_RR is the only way past other sessions' autogroups; where it is refused, niceness helps inside our own.
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


MOST_SHARE = 0.3  # of one CPU: a beat that takes more has no place before others (guess; it takes 0.01 to 0.07, measured: make bench)
MOST_WATCHING = 0.6  # the same of the screen and the recorder, whose start takes a second of CPU time
SPAN_NS = 5_000_000_000  # ns over which that is counted
CALM_NS = 60_000_000_000  # ns at least before it asks for its place again, taking less than half of that then
_STEP_NS = SPAN_NS // 10
_NICENESS = os.getpriority(os.PRIO_PROCESS, 0)  # of this process as it was started


class Place:
    """This process's place before others, which it gives up while it takes more than a ``share`` of one CPU itself: thousands of
    processes that a stranger started to be looked at must not keep the machine from everybody else."""

    def __init__(self, rank: int, share: float, ask: Callable[[int], str] = raise_priority) -> None:
        self.told = ""
        """What was granted, or is left of it; empty before it is asked for."""
        self.reason = ""
        """Why it was given up; empty where it was not."""
        self._rank, self._share = rank, share
        self._ask = ask
        self._used: deque[tuple[int, int]] = deque()
        """(CLOCK_MONOTONIC, CPU time of this process) in ns, one a step of the last `SPAN_NS`."""
        self._given_up_ns = 0

    def take(self) -> None:
        """Ask for it."""
        self.told = self._ask(self._rank)

    def note(self, now_ns: int, used_ns: int | None = None) -> bool:
        """Look at what this process took up to now; whether its place is another one than before."""
        if not self.reason and (not self.told or self.told.startswith("ordinary")):
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
            self.reason, self.told = "", self._ask(self._rank)
            _share_with_threads()
            return True
        return False

    def _give_up(self, now_ns: int, share: float) -> None:
        self._given_up_ns = now_ns
        self.reason = f"it took {share:.1%} of a CPU over {SPAN_NS // 10**9} s, more than {self._share:.0%}: {self.told} is given up"
        self.told = "ordinary"
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
        _share_with_threads()


WATCHERS_PLACE = Place(WATCHER, MOST_WATCHING)
"""The screen's and the recorder's: asked for by `gputop.cli`, looked at with each frame."""


def _share_with_threads() -> None:
    """All threads of this process get the scheduling of the one that calls."""
    policy, rank, niceness = os.sched_getscheduler(0), os.sched_getparam(0), os.getpriority(os.PRIO_PROCESS, 0)
    for tid in map(int, os.listdir("/proc/self/task")):
        with suppress(OSError):  # one that has just ended
            os.sched_setscheduler(tid, policy, rank)
            os.setpriority(os.PRIO_PROCESS, tid, niceness)


def lowered_to(rank: int) -> dict[str, Any]:
    """What `os.posix_spawn` is to be told for a child of that place; nothing where we have none ourselves."""
    ours = os.sched_getscheduler(0) == os.SCHED_RR
    return {"scheduler": (os.SCHED_RR, os.sched_param(rank))} if ours else {}


@contextmanager
def ordinary() -> Iterator[None]:
    """What this thread starts meanwhile has nobody's priority but its own: what the user has us start is not to have our place."""
    policy, rank = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, rank)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, rank)
