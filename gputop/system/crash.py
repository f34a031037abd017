"""gputop's own bugs: one line for the user, the traceback in errors.log for a bug report."""

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
from gputop.system.text import clean_lines, one_line
from gputop.system.tty import give_back

_MOST_BYTES = 1 << 16  # of errors.log; a larger one is replaced
_SHOWN_BYTES = 1 << 14  # of its end that go into a bug report
_NO_THREAD = "can't start new thread"  # text of the RuntimeError that Python raises when clone(2) fails
_END_S = 5.0  # s that the main thread has to end the program after another thread failed
_fatal: list[str] = []  # lines of the errors that end the program, to be printed once the terminal is restored


def last_words() -> str:
    """The line of the first error passed to `end_with`; empty if there was none."""
    line = _fatal[0] if _fatal else ""
    _fatal.clear()
    return line


def is_ending() -> bool:
    """True if an error ends the program: its line is all that is printed."""
    return bool(_fatal)


def end_with(error: BaseException) -> None:
    """Log an error that ends the program; `last_words` returns its line."""
    _fatal.append(log(error))


def watch_threads(say: Callable[[str], None]) -> None:
    """Make an uncaught error of any thread end the program. ``say`` prints a line to the user."""
    threading.excepthook = partial(_end, say)


def _end(say: Callable[[str], None], failed: threading.ExceptHookArgs) -> None:
    """Interrupt the main thread as Ctrl-C does, so that it restores the terminal; end the process if it does not within `_END_S`."""
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    end_with(failed.exc_value)
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
    """End the process: the main thread cannot be interrupted, or hangs."""
    if threading.main_thread().is_alive():
        try:
            give_back()
            sys.stderr = sys.__stderr__ or sys.stderr  # a screen has put its own there
            say(last_words())
        finally:
            os._exit(1)


def log_path() -> str:
    """Path of errors.log, in the folder of screen.json."""
    return os.path.join(config.state_folder(), "errors.log")


def reason(error: Exception) -> str:
    """The line for an error that costs one part of the work: its text if the system or gputop refused something, else that of `log`."""
    return str(error) if isinstance(error, (OSError, UserError)) else log(error)


def log(error: BaseException) -> str:
    """Append a bug with its traceback to errors.log; returns the line for the user. A lack of threads or memory is not logged."""
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return NO_MORE_THREADS
    if isinstance(error, MemoryError):
        return NO_MORE_MEMORY
    import traceback

    said = one_line(f"this is a bug: {type(error).__name__}: {error}")
    text = clean_lines("".join(traceback.format_exception(error)), _MOST_BYTES)
    head = f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} gputop {__version__} {' '.join(sys.argv[1:2])}\n"
    try:
        os.makedirs(os.path.dirname(log_path()), mode=0o700, exist_ok=True)
        with os.fdopen(config.open_file(log_path(), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW), "ab") as file:
            if file.tell() > _MOST_BYTES:
                file.truncate(0)
            file.write((head + text).encode(errors="replace"))
    except OSError:
        return said
    return f"{said}; its traceback is in {log_path()}: send it with gputop doctor --bundle"


def read_log() -> str:
    """The last `_SHOWN_BYTES` of errors.log; empty if there is no log."""
    try:
        with os.fdopen(config.open_file(log_path()), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SHOWN_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
