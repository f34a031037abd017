"""The beat's thread, and the one that relieves it while a driver's call hangs there.

A thread for the driver's calls and another one for the rest of the beat wake twice, each with cold caches. So one thread does both. A timer
runs while it is in such calls. If they return in time nobody else wakes. If they do not, the standby thread, asleep in a read of that
timer, asks whether a call hangs: then it goes on with the beat, and the hanging call stays with the thread that made it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import CLOCK_MONOTONIC

from gputop.sources import Relieved
from gputop.system.errors import start_thread

_SECOND_NS = 1_000_000_000  # ns
_SOON_NS = 1  # ns: the timer expires at once
_AGAIN_NS = 10_000_000  # ns between two looks of the standby thread while calls take long and none hangs


class Relay:
    """Runs a beat in a thread of its own. The thread that calls `run` only waits for the end, and so can take signals."""

    def __init__(self, relieve: Callable[[], bool]) -> None:
        """``relieve`` returns True if a call hangs: the thread that made it will raise `Relieved` once the call has returned."""
        self._relieve = relieve
        self._beat: Callable[[], None] = lambda: None
        self._over = Lock()
        self._over.acquire()
        self._ended = False
        self._raised: BaseException | None = None
        self._timer = -1  # of the standby thread, -1 while there is none
        self._is_watched = False
        self._libc = ctypes.PyDLL(None)  # its calls take less time than giving the GIL back
        self._specs: dict[int, ctypes.Array[ctypes.c_long]] = {}  # ns -> itimerspec of a timer that expires once in so many

    def run(self, beat: Callable[[], None]) -> None:
        """Run ``beat`` to its end, and raise what it raises. A thread that relieves another calls it anew."""
        self._beat = beat
        if start_thread(self._carry, "beat") is None:
            self._carry()
        self._over.acquire()
        if self._raised is not None:
            raise self._raised

    def watch(self, patience_ns: int) -> None:
        """Calls that may hang begin: the standby thread looks at them after ``patience_ns``."""
        if self._timer < 0:
            self._start_standby()
        self._is_watched = True
        self._set(self._timer, patience_ns)

    def unwatch(self) -> None:
        """The calls have returned."""
        self._is_watched = False
        self._set(self._timer, 0)

    def _carry(self) -> None:
        try:
            self._beat()
        except Relieved:
            return  # another thread has the beat
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._raised = error
        self._ended = True
        self._set(self._timer, _SOON_NS)
        self._over.release()

    def _start_standby(self) -> None:
        """Start a standby thread; if the system refuses it, a call that hangs stops the beat until it returns."""
        timer = self._libc.timerfd_create(CLOCK_MONOTONIC, os.O_CLOEXEC)
        if timer < 0:
            return
        self._timer = timer
        if start_thread(self._stand_by, "standby", timer) is None:
            self._timer = -1
            os.close(timer)

    def _stand_by(self, timer: int) -> None:
        has_beat = False
        while not has_beat:
            with suppress(InterruptedError):
                os.read(timer, 8)
            if self._ended:
                break
            has_beat = self._is_watched and self._relieve()
            if not has_beat and self._is_watched:
                self._set(timer, _AGAIN_NS)
        if has_beat:
            self._timer = -1
        os.close(timer)
        if has_beat:
            self._carry()

    def _set(self, timer: int, ns: int) -> None:
        """Let the timer expire once in ``ns``; 0 stops it."""
        if timer >= 0:
            if (spec := self._specs.get(ns)) is None:  # few: what is patience, and none
                spec = self._specs[ns] = (ctypes.c_long * 4)(0, 0, *divmod(ns, _SECOND_NS))
            self._libc.timerfd_settime(timer, 0, spec, None)
