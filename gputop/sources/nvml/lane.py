"""A lane: a thread that ticks on an absolute beat. Each GPU has two, so that no call holds up another GPU or a quick reading."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Lock
from threading import Thread
from time import monotonic_ns

_FOLLOW_EVERY_NS = 1_000_000_000


class Lane:
    """Calls ``tick(beat_ns)`` at once and then at every k x ``period_ns`` + ``phase_ns`` of CLOCK_MONOTONIC.

    A tick that lasts longer than the period leaves out the beats it missed. ``stop`` is held until the end: whoever
    releases it ends all lanes that wait on it, and a lane inside a hanging call dies with the process.
    """

    __slots__ = ("_phase_ns", "_stop", "_thread", "_tick", "began_ns", "done_ns", "lasted_ns", "period_ns")

    def __init__(self, name: str, period_ns: int, phase_ns: int, tick: Callable[[int], None], stop: Lock) -> None:
        self.period_ns = period_ns
        self.began_ns = 0
        """When the tick under way began, 0 between ticks."""
        self.lasted_ns = 0
        self.done_ns = 0
        """The beat whose tick ended last."""
        self._phase_ns = phase_ns
        self._tick = tick
        self._stop = stop
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start ticking."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._thread.ident is not None

    def join(self, timeout_s: float) -> bool:
        """Whether it ended in time."""
        if self.started:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        beat_ns = self._after(monotonic_ns()) - self.period_ns
        priority_due_ns = 0
        while True:
            if beat_ns >= priority_due_ns:
                priority_due_ns = beat_ns + _FOLLOW_EVERY_NS
                _follow_priority()
            self.began_ns = began_ns = monotonic_ns()
            self._tick(beat_ns)
            now_ns = monotonic_ns()
            self.lasted_ns = now_ns - began_ns
            self.began_ns = 0
            self.done_ns = beat_ns
            beat_ns = max(self._after(now_ns), self._after(beat_ns))
            if self._stop.acquire(timeout=(beat_ns - now_ns) / 1e9):
                self._stop.release()
                return

    def _after(self, t_ns: int) -> int:
        """The first beat after ``t_ns``."""
        return ((t_ns - self._phase_ns) // self.period_ns + 1) * self.period_ns + self._phase_ns


def _follow_priority() -> None:
    """Take the main thread's scheduling: what it raised for the beat its lanes need too, and they share a lock with it (the GIL)."""
    main = os.getpid()
    try:
        policy = os.sched_getscheduler(main)
        if policy != os.sched_getscheduler(0):
            os.sched_setscheduler(0, policy, os.sched_getparam(main))
        niceness = os.getpriority(os.PRIO_PROCESS, main)
        if niceness != os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        pass
