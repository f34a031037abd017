"""Files of /proc that are read again and again: opened once, read in place.

`os.pread` on a kept descriptor costs half to a tenth of open, read and close. It fails with ESRCH once the process has ended, even if its
pid belongs to another process now.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

LIMIT = 16_384  # most descriptors kept, however high RLIMIT_NOFILE is: each costs the kernel about 2 KB
RESERVE = 256  # descriptors left to the rest of the program
MOUNTS_BYTES = 1 << 22  # most bytes read of a mountinfo
ROOM_BYTES = 1 << 14  # of the first buffer: larger ones are mapped again for each read

_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_OCTAL = re.compile(r"\\([0-7]{3})")


class DescriptorBudget:
    """The budget of kept descriptors. Raises this process's soft RLIMIT_NOFILE as far as needed and allowed, unless ``limit`` is given."""

    __slots__ = ("kept", "limit")

    def __init__(self, limit: int | None = None) -> None:
        self.kept = 0
        self.limit = _raised_limit() - RESERVE if limit is None else limit

    def take(self, share: float) -> bool:
        """Count one more descriptor; False if ``share`` of all are in use."""
        if self.kept >= self.limit * share:
            return False
        self.kept += 1
        return True


def _raised_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = LIMIT if soft == resource.RLIM_INFINITY else soft
    wanted = LIMIT if hard == resource.RLIM_INFINITY else min(hard, LIMIT)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
    return min(max(soft, wanted), LIMIT)


class KeptFile:
    """One file, kept open while the budget lasts. If it cannot be read, ``reason`` is set and it is not tried again."""

    __slots__ = ("_fd", "_folder", "_name", "_room", "_share", "_size", "pool", "reason")

    def __init__(self, folder: str, name: str, size: int, pool: DescriptorBudget, share: float = 1.0) -> None:
        self._folder, self._name = folder, name  # thousands of files share the folder's text
        self.reason = ""
        self._fd = -1
        self._size = size
        self._room = min(size, ROOM_BYTES)
        self.pool = pool
        self._share = share

    @property
    def path(self) -> str:
        return self._folder + self._name

    @property
    def is_kept(self) -> bool:
        return self._fd >= 0

    def read(self) -> bytes:
        """Content of the file, cut to ``size``; empty if it cannot be read. Raises ProcessLookupError if the process has ended."""
        if self.reason:
            return b""
        try:
            data = os.pread(self._fd, self._room, 0) if self._fd >= 0 else self._first_read()
            while len(data) == self._room < self._size:  # all in one read: two reads may show two moments
                self._room = min(4 * self._room, self._size)
                data = os.pread(self._fd, self._room, 0) if self._fd >= 0 else self._first_read()
            return data
        except ProcessLookupError:
            raise
        except OSError as error:
            return self._refuse(error)

    def _first_read(self) -> bytes:
        fd = os.open(self.path, _FLAGS)
        try:
            data = os.pread(fd, self._room, 0)
        except OSError:
            os.close(fd)
            raise
        if self.pool.take(self._share):
            self._fd = fd
        else:
            os.close(fd)
        return data

    def _refuse(self, error: OSError) -> bytes:
        """Remember why, unless it may pass (no descriptors left). Raises ProcessLookupError if the folder is gone."""
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR):
            return b""
        if error.errno == errno.ENOENT and not os.path.exists(os.path.dirname(self.path)):
            raise ProcessLookupError(self.path) from error
        self.close()
        self.reason = why(error)
        return b""

    def retry(self) -> None:
        """Forget a refusal: an exec may have changed the right to read the file."""
        self.reason = ""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.pool.kept -= 1


class ReturningFile(KeptFile):
    """A kept file of a folder that may be removed and made again, such as a cgroup's: it is opened anew, and each read tries to."""

    __slots__ = ()

    def _refuse(self, error: OSError) -> bytes:
        if self._fd < 0 or error.errno != errno.ENODEV:
            return b""
        self.close()
        return self.read()


class KeptList(KeptFile):
    """A kept file of any number of lines, which the kernel returns a page at a time."""

    __slots__ = ()

    def read(self) -> bytes:
        data = super().read()
        if self._fd >= 0:
            return data + _rest(self._fd, data, self._size)
        return read_list(self.path, self._size) or b"" if data else data


def why(error: OSError) -> str:
    """The reason in words."""
    if error.errno == errno.ENOENT:
        return "not offered by this kernel"
    return (error.strerror or str(error)).lower()


def read_once(path: str, size: int) -> bytes | None:
    """The first ``size`` bytes of a file; None if it is gone or not readable."""
    return _read(path, lambda fd: trimmed(os.read(fd, size)))


def read_text(root: str, path: str) -> str:
    """A small file's text; empty if it cannot be read."""
    try:
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_list(path: str, size: int) -> bytes | None:
    """The first ``size`` bytes of a file that the kernel returns a page at a time, see `KeptList`; None if it is not readable."""
    return _read(path, lambda fd: (begun := os.pread(fd, min(size, ROOM_BYTES), 0)) + _rest(fd, begun, size))


def open_files(folder: str, most: int) -> Iterator[tuple[str, str]]:
    """(descriptor, link) of at most ``most`` files that a process has open; ``folder`` is its /proc/PID/. Raises OSError if unreadable."""
    with os.scandir(folder + "fd") as entries:  # a list of all, of which a process may have a million, takes a second
        for entry in islice(entries, most):
            with suppress(FileNotFoundError):  # closed meanwhile
                yield entry.name, os.readlink(f"{folder}fd/{entry.name}")


class Mounted(NamedTuple):
    """A line of /proc/PID/mountinfo."""

    id: str
    device: str  # ``major:minor``, decimal
    root: str  # the folder of the file system that is mounted
    point: str
    kind: str
    source: str  # device, export or name
    options: str  # of the file system; for v1 cgroups the controllers


def mounted(path: str) -> list[Mounted]:
    """The lines of a mountinfo; none if it is not readable."""
    found = []
    for line in (read_list(path, MOUNTS_BYTES) or b"").decode("utf-8", "replace").splitlines():
        front, _, back = line.partition(" - ")
        fields, (kind, source, options, *_) = front.split(" "), [*back.split(" "), "", "", ""]
        if len(fields) > 4:
            found.append(Mounted(fields[0], fields[2], _unescape(fields[3]), _unescape(fields[4]), kind, _unescape(source), options))
    return found


def _unescape(field: str) -> str:
    """mountinfo writes blanks, backslashes and ``#`` in octal."""
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), field) if "\\" in field else field


def _read(path: str, how: Callable[[int], bytes]) -> bytes | None:
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        return how(fd)
    except OSError:
        return None
    finally:
        os.close(fd)


def _rest(fd: int, begun: bytes, size: int) -> bytes:
    """The bytes after the first page, up to ``size``. A page may be short where a long line follows."""
    parts, have = [], len(begun)
    with suppress(OSError):
        while 0 < have < size and (part := os.pread(fd, min(size - have, ROOM_BYTES), have)):
            parts.append(part)
            have += len(part)
    return b"".join(parts)


def trimmed(data: bytes) -> bytes:
    """A copy of its own size: the buffer of a read, cut to what was read, leaves a hole in the heap."""
    return bytes(memoryview(data))
