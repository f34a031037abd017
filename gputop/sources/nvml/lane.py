"""A lane: what ticks on an absolute beat. Each GPU has two, so that no call holds up another GPU or a quick reading.

A lane has a thread of its own until its ticks prove quick; then a crew ticks it with the others on the beat's (see `crew`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from threading import Lock, Thread
from time import monotonic_ns
from typing import Protocol

SETTLES_NS = 2_000_000_000
"""After so long a lane that calls the same in each tick has shown its pace."""
_FOLLOW_EVERY_NS = 1_000_000_000


class Taker(Protocol):
    """Who may take a lane over."""

    def takes(self, lane: Lane) -> bool: ...


class Lane:
    """Calls ``tick(beat_ns)`` at once and then at every k x ``period_ns`` + ``phase_ns`` of CLOCK_MONOTONIC.

    A tick that lasts longer than the period leaves out the beats it missed. ``stop`` is held until the end: whoever
    releases it ends all lanes that wait on it, and a lane inside a hanging call dies with the process.
    """

    __slots__ = (
        "_crew", "_name", "_phase_ns", "_stop", "_tick", "began_ns", "done_ns", "error", "lasted_ns", "period_ns", "quick_turns",
        "settles_ns", "thread",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        period_ns: int,
        phase_ns: int,
        tick: Callable[[int], None],
        stop: Lock,
        crew: Taker | None = None,
        settles_ns: int = SETTLES_NS,
    ) -> None:
        self.period_ns = period_ns
        self.settles_ns = settles_ns
        """How long until all that it calls has been called, and its pace is known."""
        self.began_ns = 0
        """When the tick under way began, 0 between ticks."""
        self.lasted_ns = 0
        self.done_ns = 0
        """The beat whose tick ended last."""
        self.quick_turns = 0
        """How many ticks in a row were quick, by who counts them."""
        self.error: Exception | None = None
        """What a tick raised, which none should."""
        self.thread: Thread | None = None
        """That of its own which it has or had, None before the start."""
        self._name = name
        self._phase_ns = phase_ns
        self._tick = tick
        self._stop = stop
        self._crew = crew

    def start(self) -> None:
        """Start ticking on a thread of its own. Raises RuntimeError where there can be none; the one it had is then still to be joined."""
        thread = Thread(target=self.run, name=self._name, daemon=True)
        thread.start()
        self.thread = thread

    def join(self, timeout_s: float) -> bool:
        """Whether its own thread ended in time."""
        if self.thread is None:
            return True
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def run(self) -> None:
        """Tick on this thread, until the end or until the crew takes it over."""
        for beat_ns in beats(self.period_ns, self._phase_ns, self._stop):
            self.turn(beat_ns)
            if self._crew is not None and self._crew.takes(self):
                return

    def due(self, beat_ns: int, interval_ns: int) -> int:
        """Which beat of its own is to be ticked at somebody else's, who beats each ``interval_ns``; 0 where that has been done.

        Lanes that do not tick in each of these tick in the same ones, whatever their phase: what is done eight times in a row takes the
        caches half of what it takes them in eight beats.
        """
        own_ns = beat_ns + self._phase_ns % interval_ns
        phase_ns = self._phase_ns if self.period_ns <= interval_ns else self.period_ns // 2
        return own_ns if _after(own_ns, self.period_ns, phase_ns) - self.period_ns > self.done_ns else 0

    def turn(self, beat_ns: int) -> None:
        """Tick once."""
        self.began_ns = began_ns = monotonic_ns()
        try:
            self._tick(beat_ns)
        except Exception as error:  # noqa: BLE001 - whatever it is: who reads the source is told
            self.error = error
        self.lasted_ns = monotonic_ns() - began_ns
        self.began_ns = 0
        self.done_ns = beat_ns


def beats(period_ns: int, phase_ns: int, stop: Lock) -> Iterator[int]:
    """The beat under way and those to come, each when its time has come, until ``stop`` is released."""
    beat_ns = _after(monotonic_ns(), period_ns, phase_ns) - period_ns
    priority_due_ns = 0
    while True:
        if beat_ns >= priority_due_ns:
            priority_due_ns = beat_ns + _FOLLOW_EVERY_NS
            follow_priority()
        yield beat_ns
        now_ns = monotonic_ns()
        beat_ns = _after(max(now_ns, beat_ns), period_ns, phase_ns)
        if stop.acquire(timeout=(beat_ns - now_ns) / 1e9):
            stop.release()
            return


def _after(t_ns: int, period_ns: int, phase_ns: int) -> int:
    """The first beat after ``t_ns``."""
    return ((t_ns - phase_ns) // period_ns + 1) * period_ns + phase_ns


def follow_priority() -> None:
    """Take the main thread's scheduling: what it raised for the beat its lanes need too, and they share a lock with it (the GIL)."""
    main = os.getpid()
    try:
        policy, rank = os.sched_getscheduler(main), os.sched_getparam(main)
        if (policy, rank) != (os.sched_getscheduler(0), os.sched_getparam(0)):
            os.sched_setscheduler(0, policy, rank)
        niceness = os.getpriority(os.PRIO_PROCESS, main)
        if niceness != os.getpriority(os.PRIO_PROCESS, 0):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        pass
