"""Holders of pthread's locks: real ones of glibc, in threads and processes, and memory that only looks like one."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from gputop.sources import mutexes
from gputop.sources.files import DescriptorBudget
from gputop.sources.procfs.holders import Holders
from gputop.sources.waits import FUTEX, Waits
from tests.sources.lockers import program, sleeping
from tests.wait import until

NAMED = ("normal", "recursive", "errorcheck", "adaptive", "robust", "pi", "robust-pi", "writer-read", "writer-write")
WAIT, WAIT_PRIVATE, LOCK_PI = 0, 128, 6
WAITERS = 1 << 31


def found(pid: int) -> tuple[int, int]:
    """(pid, tid) of the holder, once the process sleeps in a futex."""
    waits = Waits(f"/proc/{pid}/", DescriptorBudget())
    until(lambda: waits.read("S")[0] == FUTEX)
    return Holders("/proc/", pid).find(waits.lock_holder, waits.shared_memory, False, lambda _: ())


@pytest.mark.parametrize("where", ["thread", "process", "helper"])
@pytest.mark.parametrize(("kind", "holds"), [*((kind, "asleep") for kind in NAMED), ("normal", "busy"), ("pi", "busy")])
def test_the_holder_is_the_thread_that_has_the_lock(kind: str, where: str, holds: str) -> None:
    with sleeping(kind, where, holds) as (pid, tid, sleeper):
        assert found(sleeper) == (pid, tid)


@pytest.mark.parametrize("where", ["thread", "process"])
@pytest.mark.parametrize("kind", ["semaphore", "condition", "reader-write"])
def test_what_has_no_holder_names_nobody(kind: str, where: str) -> None:
    with sleeping(kind, where) as (_, _, sleeper):
        assert found(sleeper) == (0, 0)


def test_a_thread_in_a_container_is_found_by_its_number_there() -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    inner = ["unshare", "--pid", "--fork", "--kill-child"]
    with sleeping("normal", "thread", "asleep", *inner) as (_, tid, own):
        assert own < tid < 10, "numbers of the new namespace"
        [sleeper] = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_inner(pid, own, str(program()))]
        waits = Waits(f"/proc/{sleeper}/", DescriptorBudget())
        until(lambda: waits.read("S")[0] == FUTEX)
        pid, outer = Holders("/proc/", sleeper).find(waits.lock_holder, waits.shared_memory, True, lambda _: ())
        assert pid == sleeper
        assert Path(f"/proc/{sleeper}/task/{outer}/status").read_text().split("NSpid:")[1].split("\n")[0].split()[-1] == str(tid)


def is_inner(pid: int, inner: int, program: str) -> bool:
    try:
        status, command = Path(f"/proc/{pid}/status").read_text(), Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return status.split("NSpid:")[1].split("\n")[0].split()[1:] == [str(inner)] and command.startswith(program.encode())


def words(*values: int) -> mutexes.Read:
    data = struct.pack(f"={len(values)}I", *values)
    return lambda _, count: data[:count] if count <= len(data) else b""


@pytest.mark.parametrize(
    ("memory", "operation", "value"),
    [
        ((2, 1, 77, 1, 0x400), WAIT, 2), ((2, 1, 77, 0, 0), WAIT, 2), ((0, 0, 77, 1, 0), WAIT, 2), ((7, 0, 77, 1, 0), WAIT, 2),
        ((WAITERS | 77, 0, 77, 1, 0), WAIT_PRIVATE, WAITERS | 77), ((2, 0, 77, 1, 0), 1, 2), ((), WAIT, 2), ((), LOCK_PI, 0),
        ((2, 1), WAIT, 2), ((3, 0, 0, 0, 1), WAIT, 3), ((5, 9, 9, 9, 9), WAIT, 3),
    ],
    ids=["no kind of mutex", "no users", "free", "no mutex's word", "not robust", "a wake-up", "unreadable", "unreadable pi",
         "the end of a mapping", "readers hold it", "something else"],
)  # fmt: skip
def test_memory_that_is_no_held_lock_names_nobody(memory: tuple[int, ...], operation: int, value: int) -> None:
    assert mutexes.holder(words(*memory), 4096, operation, value) == 0


def test_a_number_that_is_no_thread_of_the_process_is_nobody() -> None:
    holders = Holders("/proc/", os.getpid())
    assert holders.find(1, "", False, lambda _: ()) == (0, 0)
    assert holders.find(1 << 29, "", False, lambda _: ()) == (0, 0)
    assert holders.find(1, "00:01 424242", False, lambda _: ()) == (0, 0), "it does not map that memory"
