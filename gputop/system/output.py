"""New files: mode 0600, nothing overwritten, no link followed, whole or not there."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from typing import NoReturn

from gputop.system.errors import UserError
from gputop.system.text import clean

UNFINISHED = ".unfinished"  # suffix of a file that is still being written
Make = Callable[[str], object]  # creates, or removes, a file or a directory


def create(path: str) -> int:
    """Open a new file with mode 0600 for reading and writing; returns its descriptor.

    Raises UserError, also for a file or link that exists already.
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
    """Raise the UserError that `create` would raise if something exists at ``path``."""
    if os.path.lexists(path):
        raise _in_the_way(path)


def create_file(path: str) -> None:
    """Create an empty file. Raises UserError as `create` does."""
    os.close(create(path))


@contextmanager
def whole_or_gone(path: str, make: Make = create_file, remove: Make = os.unlink) -> Iterator[str]:
    """Yield a temporary path next to ``path`` (suffix `UNFINISHED`) that is renamed to ``path`` when the block ends without an error.

    After an error or Ctrl-C the temporary file is removed; only `kill -9` leaves it. ``make`` creates ``path`` as a test before the
    work, and again before the rename; it raises UserError if it cannot.
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


@contextmanager
def new_directory(path: str) -> Iterator[str]:
    """Yield an empty temporary directory (mode 0700) that becomes ``path`` as in `whole_or_gone`. Raises UserError."""
    with whole_or_gone(path, _create_directory, shutil.rmtree) as part:
        _create_directory(part)
        yield part


def _create_directory(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        raise UserError(f"{clean(path)} exists already: give another name with -o") from None
    except OSError as error:
        raise UserError(f"cannot create {clean(path) or 'a directory without a name'}: {error.strerror}") from None


def _put(part: str, path: str, remove: Make) -> None:
    """Rename ``part`` over the empty ``path``."""
    try:
        os.rename(part, path)
    except OSError as error:
        remove(path)
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from None


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit within the block, so that unfinished files are removed as after Ctrl-C."""
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
    """The first free name: ``stem + suffix``, else with ``-2``, ``-3`` … between them."""
    return next(path for path in (f"{stem}{end}{suffix}" for end in chain([""], (f"-{i}" for i in count(2)))) if not os.path.lexists(path))


def _in_the_way(path: str) -> UserError:
    return UserError(f"{clean(path)} {_kind_at(path)}: give another name with -o")


def _kind_at(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "exists already"
    if stat.S_ISLNK(mode):
        return "is a link, which is not followed"
    return "is a directory" if stat.S_ISDIR(mode) else "exists already"


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``, in as many writes as that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
