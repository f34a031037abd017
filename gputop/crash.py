"""Bugs of our own: told in a line, and kept with their traceback for a bug report."""

from __future__ import annotations

import os
import sys
import time

from gputop import __version__
from gputop import config
from gputop.errors import NO_MORE_THREADS
from gputop.errors import UserError

_MOST_BYTES = 1 << 16
_SHOWN_BYTES = 1 << 14
_NO_THREAD = "can't start new thread"
"""Python's words, and all that tells it from other RuntimeErrors."""


def path() -> str:
    """Where they are kept: errors.log beside the screen as it was left."""
    return os.path.join(os.path.dirname(config.state_path()), "errors.log")


def reason(error: Exception) -> str:
    """What a thread that nobody waits for says instead of dying: what the system or we refused, or that it is a bug, which is kept."""
    return str(error) if isinstance(error, (OSError, UserError)) else keep(error)


def keep(error: BaseException) -> str:
    """Append it to the file, which starts anew when it is large; the line to tell the user. That there can be no more threads is no bug."""
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return NO_MORE_THREADS
    import traceback

    said = f"this is a bug: {type(error).__name__}: {error}"
    text = "".join(traceback.format_exception(error))
    head = f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} gputop {__version__} {' '.join(sys.argv[1:2])}\n"
    try:
        os.makedirs(os.path.dirname(path()), mode=0o700, exist_ok=True)
        with os.fdopen(config.open_file(path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "ab") as file:
            if file.tell() > _MOST_BYTES:
                file.truncate(0)
            file.write((head + text).encode(errors="replace"))
    except OSError:
        return said
    return f"{said}; its traceback is in {path()}: send it with gputop doctor --bundle"


def kept() -> str:
    """The end of the file, empty where there is none."""
    try:
        with os.fdopen(config.open_file(path()), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
