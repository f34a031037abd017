"""Creating a file that belongs to the user alone, in nobody's way."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from typing import NoReturn

from gputop.system.errors import UserError
from gputop.system.text import clean

UNFINISHED = ".unfinished"
"""Ends the name of what is not whole yet."""
Make = Callable[[str], object]
"""Makes, or removes, a file or a directory."""


def create(path: str) -> int:
    """A descriptor of the new file ``path``, mode 0600.

    What exists is never overwritten and a link never followed: UserError, in one line, as for any other reason it cannot be.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise _in_the_way(path) from None
    except OSError as error:
        raise UserError(f"cannot create {clean(path) or 'a file without a name'}: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{clean(path)!r} is no file name") from None


def check_new(path: str) -> None:
    """What `create` would say of what stands at ``path``, before anything is done for it. Raises UserError."""
    if os.path.lexists(path):
        raise _in_the_way(path)


def create_file(path: str) -> None:
    """The new file ``path``, empty. Raises UserError as `create` does."""
    os.close(create(path))


@contextmanager
def whole_or_gone(path: str, make: Make = create_file, remove: Make = os.unlink) -> Iterator[str]:
    """Where to write what becomes the new file ``path`` when it is whole: beside it, under a name that says so.

    What is not finished is taken away, be it for Ctrl-C; only `kill -9` leaves it, under that name. ``make`` refuses in its own words what
    cannot be ``path``: before anything is done for it, and at the end what has come there since. Raises UserError.
    """
    make(path)
    remove(path)
    part = unused(f"{path.rstrip(os.sep)}{UNFINISHED}", "")
    try:
        yield part
        make(path)
        _put(part, path, remove)
    except BaseException:
        with suppress(OSError):
            remove(part)
        raise


def _put(part: str, path: str, remove: Make) -> None:
    """In place of what was made at ``path``, and is empty."""
    try:
        os.rename(part, path)
    except OSError as error:
        remove(path)
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from None


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """What is not finished is taken away also where a job is cancelled (SIGTERM) or its terminal is lost (SIGHUP)."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def unused(stem: str, suffix: str = ".gputop") -> str:
    """A name at which nothing stands: ``stem`` and ``suffix``, or with a number between them."""
    return next(path for path in (f"{stem}{end}{suffix}" for end in chain([""], (f"-{i}" for i in count(2)))) if not os.path.lexists(path))


def _in_the_way(path: str) -> UserError:
    return UserError(f"{clean(path)} {_what_stands_at(path)}: give another name with -o")


def _what_stands_at(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "exists already"
    if stat.S_ISLNK(mode):
        return "is a link, which is not followed"
    return "is a directory" if stat.S_ISDIR(mode) else "exists already"
