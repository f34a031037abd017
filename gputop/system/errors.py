"""Errors that are said to the user in one line: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

NO_MORE_THREADS = "no more processes or threads are allowed here: raise ulimit -u, or pids.max of the cgroup"
"""What fork(2) and clone(2) mean by EAGAIN."""
NO_MORE_MEMORY = "there is not enough memory for this (ulimit -v, memory.max): free some, or ask for less time with --last"


class UserError(Exception):
    """Cannot go on. ``code`` is the exit code: 1 it could not, 2 wrong usage."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def starting() -> Iterator[None]:
    """Around what starts a process or a thread: UserError where there can be no more, or where the program cannot be run."""
    try:
        yield
    except (BlockingIOError, RuntimeError):
        raise UserError(NO_MORE_THREADS) from None
    except OSError as error:
        raise UserError(not_run(error)) from None


def not_run(error: OSError) -> str:
    """Why a program was not started. Where the interpreter of one that may be run is refused, the system's word does not say so."""
    import shutil

    may_be_run = isinstance(error, (FileNotFoundError, PermissionError)) and shutil.which(str(error.filename))
    return f"cannot run {error.filename or 'a child'}: {'the interpreter that it names: ' if may_be_run else ''}{error.strerror}"
