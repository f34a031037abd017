"""Gives the terminal back that a screen took, also where the screen's own end fails."""

from __future__ import annotations

import os
import select
import termios
from contextlib import suppress
from typing import Any

_PATIENCE_MS = 1000  # ms for a terminal to take the sequences: one that hangs would otherwise keep the process for ever
# CAN cuts off a sequence that was half written. Then what Textual's driver switches on, in the order in which it leaves: synchronized
# updates, bracketed paste, no line wrap, sizes in sequences, the mouse, kitty's keys, the alternate screen, no cursor, focus; colours.
_LEAVE = (
    b"\x18\x1b[?2026l\x1b[?2004l\x1b[?7h\x1b[?2048l\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l\x1b[0m"
)


_taken: tuple[int, int, list[Any]] | None = None  # the descriptors that are read and written, and termios of before


def take(keys: int, drawing: int) -> None:
    """Remember the settings of the terminal at these descriptors, before a screen changes them; nothing if it is no terminal."""
    global _taken
    with suppress(termios.error):
        _taken = keys, drawing, termios.tcgetattr(keys)


def given_back() -> None:
    """Note that the screen has given the terminal back by itself."""
    global _taken
    _taken = None


def give_back() -> None:
    """Give the terminal back unless that is done; in the background it is another process's.

    Raises nothing, and waits `_PATIENCE_MS` at most.
    """
    global _taken
    taken, _taken = _taken, None
    if taken is None:
        return
    keys, drawing, settings = taken
    with suppress(OSError, termios.error):
        if os.tcgetpgrp(keys) != os.getpgrp():
            return
    with suppress(OSError, termios.error):
        termios.tcflush(keys, termios.TCIFLUSH)  # answers to questions of the screen are no keys for the shell
        termios.tcsetattr(keys, termios.TCSANOW, settings)
    with suppress(OSError):
        watch = select.poll()
        watch.register(drawing, select.POLLOUT)
        if watch.poll(_PATIENCE_MS):
            os.write(drawing, _LEAVE)
