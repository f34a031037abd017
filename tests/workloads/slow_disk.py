"""A real file on a real disk, and the limit that makes the disk slow for one workload."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.runner import Running

FILE_BYTES = 192 << 20
_READ_BYTES_PER_S = 24 << 20


def missing() -> str:
    """Why reads cannot be limited here, empty if they can."""
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
def throttle(running: Running) -> Iterator[None]:
    """From now on the workload reads at 24 MB/s at most."""
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _READ_BYTES_PER_S)
        cgroup.add(group, [*running.trainer_pids, *running.workers()])
        yield


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor, for reading unless ``flags`` say otherwise."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
