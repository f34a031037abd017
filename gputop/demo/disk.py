"""A file on a real disk without a name, and reads of it that bypass the page cache."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time

from gputop.system.errors import UserError

FILE_BYTES = 64 << 20
_RECORD_BYTES = 32 << 10


def make_file() -> int:
    """A descriptor of `FILE_BYTES` that were really written, to be read with O_DIRECT. Raises UserError where no disk is at hand."""
    in_memory = _in_memory()
    for folder in (tempfile.gettempdir(), "/var/tmp", os.getcwd(), os.path.expanduser("~")):
        fd = -1
        try:
            if os.stat(folder).st_dev in in_memory:
                continue
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
            _fill(fd)
            return fd
        except OSError:
            if fd >= 0:
                os.close(fd)
    raise UserError("slow-disk needs a file on a disk that allows direct reads, and none of /tmp, /var/tmp, here and ~ is: set TMPDIR")


def _in_memory() -> set[int]:
    """Devices of file systems that lie in memory, which newer kernels let read directly too (/proc/self/mountinfo)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        mounts = [line.partition(" - ") for line in file]
    numbers = [mount.split()[2].split(":") for mount, _, kind in mounts if kind.startswith(("tmpfs ", "ramfs "))]
    return {os.makedev(int(major), int(minor)) for major, minor in numbers}


def _fill(fd: int) -> None:
    block = mmap.mmap(-1, 1 << 20)
    block.write(os.urandom(1 << 20))
    for _ in range(FILE_BYTES >> 20):
        os.write(fd, block)
    os.fsync(fd)


def read_records(fd: int, seconds: float) -> None:
    """Read small records all over the file, one after the other, for so long: a data set of many small files."""
    record, end = mmap.mmap(-1, _RECORD_BYTES), time.monotonic() + seconds
    while time.monotonic() < end:
        os.preadv(fd, [record], random.randrange(FILE_BYTES // _RECORD_BYTES) * _RECORD_BYTES)
