"""Who shares a System V semaphore with its sleeper, and who serves the file system that a process waits for: real ones."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sources.children import child
from tests.sources.test_procfs_real import Live, poll_a_minute
from tests.sources.test_procfs_real import live as live
from tests.wait import until
from tests.workloads import fuse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.shmat.restype = ctypes.c_void_p
_PRIVATE, _CREATE, _REMOVE, _UNDO = 0, 0o1600, 0, 0x1000
FIRST, SECOND = 0, 1


class Operation(ctypes.Structure):
    """struct sembuf."""

    _fields_ = (("number", ctypes.c_ushort), ("by", ctypes.c_short), ("flags", ctypes.c_short))


def change(semid: int, number: int, by: int, flags: int = 0) -> None:
    assert not _libc.semop(semid, ctypes.byref(Operation(number, by, flags)), 1)


@contextmanager
def semaphores(count: int) -> Iterator[int]:
    """A set of them, all 0."""
    semid = _libc.semget(_PRIVATE, count, _CREATE)
    assert semid >= 0
    try:
        yield semid
    finally:
        _libc.semctl(semid, 0, _REMOVE)


def ends(live: Live, pid: int) -> list[int]:
    return live.board.infos[pid].other_ends if pid in live.board.infos else []


def sleeps(semid: int, number: int, flags: int = 0) -> Callable[[], None]:
    return lambda: change(semid, number, -1, flags)


def test_who_has_taken_a_semaphore_that_its_end_gives_back_holds_it(live: Live) -> None:

    def hold() -> None:
        change(semid, FIRST, -1, _UNDO)
        poll_a_minute()

    with semaphores(1) as semid:
        change(semid, FIRST, 1)
        with child(hold) as holder:
            live.until(lambda _: _libc.semctl(semid, FIRST, 12) == 0, set())  # GETVAL
            with child(sleeps(semid, FIRST, _UNDO)) as waits, child(sleeps(semid, FIRST)) as counts:
                known = {waits, counts}
                live.until(lambda _: ends(live, counts) == [holder], known, alone=known)
                live.until(lambda _: live.board.procs[waits].locked_by == holder, known, alone=known)
                assert live.board.procs[counts].locked_by is None
                assert live.board.procs[waits].shared_futex == live.board.procs[counts].shared_futex is not None


def test_whoever_posts_another_semaphore_of_the_set_is_at_the_other_end(live: Live) -> None:

    def post() -> None:
        change(semid, SECOND, 1)
        poll_a_minute()

    with semaphores(2) as semid, child(post) as posts, child(sleeps(semid, FIRST)) as waits, child(poll_a_minute):
        live.until(lambda _: ends(live, waits) == [posts], {waits}, alone={waits})
        assert live.board.procs[waits].locked_by is None


def test_whoever_maps_the_memory_that_it_guards_is_at_the_other_end(live: Live) -> None:
    """The sleeper was the last to change each semaphore: the kernel names nobody else."""
    segment = _libc.shmget(_PRIVATE, 4096, _CREATE)
    assert segment >= 0

    def attach(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            assert _libc.shmat(segment, None, 0) not in (None, ctypes.c_void_p(-1).value)
            work()

        return run

    def wait() -> None:
        change(semid, SECOND, 1)
        change(semid, FIRST, -1)

    try:
        with semaphores(2) as semid, child(attach(poll_a_minute)) as makes, child(poll_a_minute):
            until(lambda: "/SYSV" in Path(f"/proc/{makes}/maps").read_text())  # a search that finds nobody is not soon repeated
            with child(attach(wait)) as waits:
                live.until(lambda _: ends(live, waits) == [makes], {waits}, alone={waits})
    finally:
        _libc.shmctl(segment, _REMOVE, None)


def test_the_daemon_of_a_file_system_is_at_the_other_end(live: Live, tmp_path: Path) -> None:
    if fuse.missing():
        pytest.skip(fuse.missing())

    def serve() -> None:
        def read(count: int) -> bytes:
            time.sleep(0.05)
            return bytes(count)

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        fuse.serve(str(tmp_path), "slowfs", read)

    def train() -> None:
        while not (tmp_path / "shard.bin").exists():
            time.sleep(0.02)
        file = os.open(tmp_path / "shard.bin", os.O_RDONLY)
        while True:
            os.pread(file, fuse.BLOCK, 0)

    try:
        with child(serve) as daemon, child(train) as trainer, child(poll_a_minute):
            live.until(lambda _: daemon in ends(live, trainer), {trainer}, alone={trainer})
    finally:
        _libc.umount2(str(tmp_path).encode(), 2)
