"""A real file on a real disk, and the limit that makes the disk slow for one workload."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.runner import Running

FILE_BYTES = 192 << 20
_READ_BYTES_PER_S = 24 << 20
_Limit = Callable[[Path, str, int], None]


def missing() -> str:
    """Why a disk cannot be made slow here, empty if it can."""
    return cgroup.missing("blkio")


@contextmanager
def file(running: Running) -> Iterator[None]:
    """`samples` in the workload's folder, on disk and out of the page cache."""
    path = running.folder / "samples"
    block = os.urandom(1 << 20)
    with path.open("wb") as out:
        for _ in range(FILE_BYTES // len(block)):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, FILE_BYTES, os.POSIX_FADV_DONTNEED)
    yield


@contextmanager
def throttle(
    running: Running, limit: _Limit = cgroup.limit_reads, bytes_per_s: int = _READ_BYTES_PER_S, pids: Sequence[int] = ()
) -> Iterator[None]:
    """From now on the workload, or ``pids`` of it alone, reads (or what else ``limit`` limits) at ``bytes_per_s`` at most, in its
    folder."""
    with cgroup.group("blkio", running.name) as group:
        limit(group, cgroup.device_of(running.folder), bytes_per_s)
        cgroup.add(group, [*pids] or [*running.trainer_pids, *running.workers()])
        yield


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor, for reading unless ``flags`` say otherwise."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def put(path: Path, content: bytes, times: int = 1) -> None:
    """A new file with that many times the content, on disk and out of the page cache."""
    with opened(path, os.O_WRONLY | os.O_CREAT) as file:
        for _ in range(times):
            os.write(file, content)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def from_birth(running: Running, bytes_per_s: int) -> Iterator[None]:
    """The trainer and all that it starts read at ``bytes_per_s`` at most, from their beginning."""
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder), bytes_per_s)
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        yield
