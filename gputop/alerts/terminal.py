"""Writes to the user's terminal without damage to a screen that is drawn there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gputop.alerts.sinks import Refused

_draw: Callable[[str], None] | None = None
"""Function by which the screen writes, if one is shown: a sequence must not fall into another one."""


@contextmanager
def drawn_by(draw: Callable[[str], None]) -> Iterator[None]:
    """Write by the function of a screen within the block."""
    global _draw
    _draw = draw
    try:
        yield
    finally:
        _draw = None


def write_terminal(text: str) -> None:
    """Write to the terminal of this process, whatever its standard streams are. `Refused` if it has no terminal, OSError if the terminal
    takes nothing now."""
    if _draw is not None:
        _draw(text)
        return
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)  # a stopped terminal must not hold it up
    except OSError as error:
        raise Refused(error.errno, "gputop has no terminal here") from None
    try:
        os.write(terminal, text.encode())
    finally:
        os.close(terminal)
