"""Errors that the user sees as one line: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threading import Thread

# For EAGAIN of fork(2) and clone(2).
NO_MORE_THREADS = "no more processes or threads are allowed here: raise ulimit -u, or pids.max of the cgroup"
NO_MORE_MEMORY = "there is not enough memory for this (ulimit -v, memory.max): free some, or ask for less time with --last"


class UserError(Exception):
    """The command cannot go on. ``code`` is the exit code: 1 it failed, 2 wrong usage."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Unavailable(Exception):
    """A source, or an on-demand probe, cannot be used: ``reason`` is why, ``remedy`` what the user can do about it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@contextmanager
def starting() -> Iterator[None]:
    """Raise UserError if no more processes or threads are allowed, or the program cannot be run; a block around code that starts one."""
    try:
        yield
    except (BlockingIOError, RuntimeError):
        raise UserError(NO_MORE_THREADS) from None
    except OSError as error:
        raise UserError(not_run(error)) from None


def start_thread(work: Callable[..., object], name: str, *arguments: object) -> Thread | None:
    """Start a daemon thread that calls ``work(*arguments)``; None if no more threads can be started now."""
    from threading import Thread

    thread = Thread(target=work, args=arguments, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def not_run(error: OSError) -> str:
    """The reason why a program was not started. The system's error does not show when only the script's interpreter was refused."""
    import shutil

    may_be_run = isinstance(error, (FileNotFoundError, PermissionError)) and shutil.which(str(error.filename))
    return f"cannot run {error.filename or 'a child'}: {'the interpreter that it names: ' if may_be_run else ''}{error.strerror}"
