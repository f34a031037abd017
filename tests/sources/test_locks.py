"""What /proc/locks says, line by line."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from contextlib import ExitStack
from multiprocessing.synchronize import Lock
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputop.sources.files import DescriptorBudget
from gputop.sources.procfs import locks as module
from gputop.sources.procfs.locks import SHARE, STILL_SHARE, HeldLocks, Locks, OpenFiles, parse_locks
from gputop.sources.waits import FUTEX, Waits
from tests.wait import until

TEXT = """1: POSIX  ADVISORY  WRITE 812 08:01:99 0 EOF
1: -> POSIX  ADVISORY  WRITE 900 08:01:99 0 EOF
1: -> POSIX  ADVISORY  READ  901 08:01:99 0 EOF
2: FLOCK  ADVISORY  READ  700 00:1a:5 0 EOF
3: OFDLCK ADVISORY  WRITE -1 08:01:7 0 EOF
3: -> FLOCK  ADVISORY  WRITE 902 08:01:7 0 EOF
4: FLOCK  ADVISORY  WRITE 701 00:1a:6 0 EOF
"""


def test_exclusive_locks_with_their_holders_and_who_waits_for_them():
    assert parse_locks(TEXT) == HeldLocks({"08:01:99": 812, "00:1a:6": 701}, {900: 812, 901: 812})


def test_a_reader_keeps_a_writer_waiting():
    text = "1: FLOCK  ADVISORY  READ 700 00:1a:5 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 702 00:1a:5 0 EOF\n"
    assert parse_locks(text) == HeldLocks({}, {702: 700})


@pytest.mark.parametrize("limit", [1, 0], ids=["kept open", "no descriptors left"])
def test_more_locks_than_a_page_holds(tmp_path: Path, limit: int):
    """The kernel gives /proc/locks a page at a time."""
    pool = DescriptorBudget()
    pool.limit = limit
    with ExitStack() as stack:
        files = [stack.enter_context(open(tmp_path / str(i), "w")) for i in range(200)]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        inodes = {os.fstat(file.fileno()).st_ino for file in files}
        held = Locks("/proc/", pool).held(1)
        assert inodes <= {int(name.rpartition(":")[2]) for name, pid in held.by_file.items() if pid == os.getpid()}


MOUNTINFO = "24 27 0:26 / /mnt/share rw - nfs4 server:/ rw\n26 1 254:0 / / rw - ext4 /dev/vda rw\n"


@pytest.mark.parametrize(
    ("fdinfo", "keeps"),
    [
        ("pos:\t0\nflags:\t02\nmnt_id:\t24\nino:\t6\nlock:\t1: POSIX\n", 701),
        ("pos:\t0\nflags:\t02\nmnt_id:\t26\nino:\t6\n", None),
        ("pos:\t0\nflags:\t02\nmnt_id:\t24\n", None),
    ],
    ids=["the file", "the same inode elsewhere", "a kernel before 5.14"],
)
def test_an_open_file_is_told_without_asking_its_file_system(tmp_path: Path, fdinfo: str, keeps: int | None):
    """A network mount whose server is gone answers no stat; here it is a path that leads nowhere."""
    (tmp_path / "fd").mkdir()
    (tmp_path / "fd/3").symlink_to("/mnt/share/of/a/dead/server")
    (tmp_path / "fd/4").symlink_to("socket:[6]")
    (tmp_path / "fdinfo").mkdir()
    (tmp_path / "fdinfo/3").write_text(fdinfo)
    (tmp_path / "mountinfo").write_text(MOUNTINFO)
    assert OpenFiles(f"{tmp_path}/", 812).locked_by(parse_locks(TEXT), 10**12, 1) == keeps


def test_a_lock_that_comes_and_goes_is_told_whenever_it_is_held(tmp_path: Path):
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held, free = Locks("/proc/", DescriptorBudget()).held(1), HeldLocks({"00:1a:6": 701})
        files, second = OpenFiles("/proc/self/", 2**30), 10**9
        told = [files.locked_by(held if i % 2 else free, 10**12 + i * second // 2, 1) for i in range(60)]
        assert told[3::2] == [os.getpid()] * 29
        assert told[::2] == [None] * 30


def test_locks_that_never_change_are_asked_for_more_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clock = [0]

    def a_millisecond_later() -> int:
        clock[0] += 10**6
        return clock[0]

    def readings(locks: Locks, start_s: int, changing: bool) -> int:
        began = clock[0]
        for tenth in range(10 * start_s, 10 * start_s + 200):
            (tmp_path / "locks").write_text(TEXT.replace("812", str(tenth)) if changing else TEXT)
            locks.held(tenth * 10**8)
        return (clock[0] - began) // (2 * 10**6)

    monkeypatch.setattr(time, "thread_time_ns", a_millisecond_later)
    (tmp_path / "locks").write_text(TEXT)
    locks = Locks(f"{tmp_path}/", DescriptorBudget())
    assert readings(locks, 100, changing=True) == 20
    assert readings(locks, 200, changing=False) == pytest.approx(20 * STILL_SHARE / SHARE, abs=5)


@pytest.mark.parametrize(("took_ms", "changing", "still"), [(0, 200, 200), (15, 100, 20), (80, 25, 20), (900, 20, 20)])
def test_readings_that_wait_long_are_made_less_often_but_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_ms: int, changing: int, still: int
):
    now_ns, made = [0], [0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0], thread_time_ns=lambda: 0))
    (tmp_path / "locks").write_text(TEXT)
    locks = Locks(f"{tmp_path}/", DescriptorBudget())
    file = locks._file

    def read() -> bytes:
        made[0] += 1
        now_ns[0] += took_ms * 10**6
        return file.read()

    def readings(start_s: int, changes: bool) -> int:
        before = made[0]
        for tenth in range(10 * start_s, 10 * start_s + 200):
            (tmp_path / "locks").write_text(TEXT.replace("812", str(tenth)) if changes else TEXT)
            locks.held(tenth * 10**8)
        return made[0] - before

    monkeypatch.setattr(locks, "_file", SimpleNamespace(read=read))
    assert readings(100, changes=True) == pytest.approx(changing, abs=1)
    readings(200, changes=False)
    assert readings(220, changes=False) == pytest.approx(still, abs=1)


def test_a_real_file_that_another_process_keeps_locked(tmp_path: Path):
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held = Locks("/proc/", DescriptorBudget()).held(1)
        other = 2**30  # this process is looked at as if it were another one
        assert OpenFiles("/proc/self/", other).locked_by(held, 10**12, 1) == os.getpid()


def test_what_is_no_such_line_is_left_out():
    assert parse_locks("\n1:\n1: ->\nx y z\n1: POSIX ADVISORY WRITE ten 08:01:99 0 EOF\n1: LEASE  ACTIVE\n") == HeldLocks()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_who_sleep_at_one_lock_between_processes_are_met_at_one_place(method: str):
    """Each has it mapped at an address of its own; another lock is at another place."""
    context = multiprocessing.get_context(method)
    one, other = context.Lock(), context.Lock()
    with one, other:
        sleepers = [context.Process(target=_take, args=(lock,), daemon=True) for lock in (one, one, other)]
        for sleeper in sleepers:
            sleeper.start()
        try:
            waits = [Waits(f"/proc/{sleeper.pid}/", DescriptorBudget()) for sleeper in sleepers]
            until(lambda: all(_place(one) is not None for one in waits))
            first, second, third = map(_place, waits)
        finally:
            for sleeper in sleepers:
                sleeper.kill()
                sleeper.join()
    assert first == second != third


def test_a_lock_of_threads_is_none_between_processes():
    lock, tids = threading.Lock(), list[int]()
    with lock:
        sleeper = threading.Thread(target=lambda: (tids.append(threading.get_native_id()), lock.acquire()), daemon=True)
        sleeper.start()
        until(lambda: bool(tids))
        waits = Waits(f"/proc/self/task/{tids[0]}/", DescriptorBudget())
        until(lambda: waits.read("S")[0] == FUTEX)
        assert waits.shared_futex is None


def _take(lock: Lock) -> None:
    lock.acquire()


def _place(waits: Waits) -> int | None:
    return waits.shared_futex if waits.read("S")[0] == FUTEX else None
