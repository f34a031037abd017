"""A beat that goes on though a call on its way hangs.

Waking a thread costs more than asking a quick driver: its caches are cold. So who beats makes such calls too. Should one hang after all,
the beat's thread is left to it and another goes on, which a timer of the kernel's wakes us for; in time it costs a microsecond.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from threading import Thread
from time import CLOCK_MONOTONIC

from gputop.sources import Turns

HANGS_NS = 10_000_000
"""A turn that takes longer is looked at."""


class Relay:
    """Takes ``beats``, each when its time has come, and in each makes the ``turns`` that there are then."""

    def __init__(self, beats: Iterator[int], turns: Callable[[], Turns | None]) -> None:
        self._beats = beats
        self._turns = turns
        self._beat_ns = 0
        self._under_way: Turns | None = None
        """What is being done of this beat."""
        self._alarm: Alarm
        self._over = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """To the end of the beats; raises what they raise. On this thread until there are turns, and then beside it."""
        for beat_ns in self._beats:
            if self._turns() is not None:
                self._beat_ns = beat_ns
                self._alarm = Alarm()
                try:
                    self._watch()
                finally:
                    self._alarm.close()
                break
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        """Hand the beat to another thread, and sleep until the end or until a turn hangs."""
        self._go_on()
        while not self._over:
            self._alarm.wait()
            turns = self._under_way
            if turns is not None and not self._over:
                if turns.relieve():
                    self._go_on()
                else:
                    self._alarm.set(HANGS_NS)

    def _go_on(self) -> None:
        """On another thread, or on this one where there can be no other (pids.max, RLIMIT_NPROC)."""
        try:
            Thread(target=self._run, name="beat", daemon=True).start()
        except RuntimeError:
            self._run()

    def _run(self) -> None:
        try:
            while self._take_turns():
                self._beat_ns = next(self._beats)
            return
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where it was awaited
            self._error = error
        self._over = True
        self._alarm.set(1)

    def _take_turns(self) -> bool:
        """False where this thread has been left to one that hung."""
        turns = self._turns()
        if turns is None:
            return True
        self._under_way = turns
        self._alarm.set(HANGS_NS)
        if not turns.turn(self._beat_ns):
            return False
        self._under_way = None
        self._alarm.set(0)
        return True


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("ns", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Wakes who waits for it some time after it was set last: timerfd_create(2), which Python has from 3.13 on."""

    def __init__(self) -> None:
        """Raises OSError."""
        libc = ctypes.PyDLL(None, use_errno=True)  # nothing here waits: the interpreter's lock is kept
        self._fd = libc.timerfd_create(CLOCK_MONOTONIC, os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._setting = _Setting()
        self._arguments = self._fd, 0, ctypes.byref(self._setting), None
        self._settime = libc.timerfd_settime

    def set(self, ns: int) -> None:
        """Less than a second from now; never where 0."""
        self._setting.value.ns = ns
        self._settime(*self._arguments)

    def wait(self) -> None:
        """Until it goes off."""
        os.read(self._fd, 8)

    def close(self) -> None:
        """It goes off no more."""
        os.close(self._fd)
