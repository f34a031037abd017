"""Bugs of our own: told in a line, and kept with their traceback for a bug report."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gputop.system import config
from gputop.system.errors import NO_MORE_MEMORY, NO_MORE_THREADS, UserError
from gputop.system.program import __version__

_MOST_BYTES = 1 << 16
_SHOWN_BYTES = 1 << 14
_NO_THREAD = "can't start new thread"
"""Python's words, and all that tells it from other RuntimeErrors."""
_END_S = 5.0  # s that the main thread has to end the program once another one has failed
_told: list[str] = []
"""What to say of errors that nobody could catch, once the terminal is the user's again."""


def last_words() -> str:
    """The line of the first error that ended this program from outside of its main thread's calls; empty where none did."""
    said = _told[0] if _told else ""
    _told.clear()
    return said


def note(error: BaseException) -> None:
    """Keep an error that ends the program; `last_words` says it."""
    _told.append(keep(error))


def watch_threads(say: Callable[[str], None]) -> None:
    """Let an error that a thread does not catch end the program: nothing goes on with a part missing. ``say`` tells the user a line."""
    threading.excepthook = partial(_end, say)


def _end(say: Callable[[str], None], failed: threading.ExceptHookArgs) -> None:
    """Wake the main thread as Ctrl-C does: it gives back what it has taken, such as the terminal."""
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    note(failed.exc_value)
    last = threading.Timer(_END_S, _end_at_once, (say,))
    last.daemon = True
    try:
        last.start()
    except RuntimeError:  # no more threads are allowed
        _end_at_once(say)
    main = threading.main_thread().ident
    if main is not None and signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        with suppress(OSError):
            signal.pthread_kill(main, signal.SIGINT)
            return
    _end_at_once(say)


def _end_at_once(say: Callable[[str], None]) -> None:
    """Where the main thread cannot be woken, or hangs."""
    if threading.main_thread().is_alive():
        say(last_words())
        os._exit(1)


def path() -> str:
    """Where they are kept: errors.log beside the screen as it was left."""
    return os.path.join(os.path.dirname(config.state_path()), "errors.log")


def reason(error: Exception) -> str:
    """What a thread that nobody waits for says instead of dying: what the system or we refused, or that it is a bug, which is kept."""
    return str(error) if isinstance(error, (OSError, UserError)) else keep(error)


def keep(error: BaseException) -> str:
    """Append it to the file, which starts anew when it is large; the line to tell the user. Too few threads or bytes are no bug."""
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return NO_MORE_THREADS
    if isinstance(error, MemoryError):
        return NO_MORE_MEMORY
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
