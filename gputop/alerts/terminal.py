"""Writing to the user's terminal beside whatever is drawn there."""

from __future__ import annotations

import os
from collections.abc import Callable

from gputop.alerts.sinks import Refused

draw: Callable[[str], None] | None = None
"""How the screen writes, where one is shown: a sequence must not fall into another one. Set by the live view."""


def write_terminal(text: str) -> None:
    """Write to the terminal of this process, whatever its standard streams are. `Refused` where it has none, OSError where that takes
    nothing now."""
    if draw is not None:
        draw(text)
        return
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)  # a stopped terminal must not hold it up
    except OSError as error:
        raise Refused(error.errno, "gputop has no terminal here") from None
    try:
        os.write(terminal, text.encode())
    finally:
        os.close(terminal)
