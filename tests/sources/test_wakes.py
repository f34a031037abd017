"""The map of wake-ups as rows: which entries join, and that no sum falls or counts twice when entries are deleted."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import cast

import pytest

from gputop.model.frame import Wakeup
from gputop.model.syscalls import syscall_names
from gputop.sources.ebpf.maps import Map, Shape
from gputop.sources.ebpf.wakes import LITTLE_NS, MOST_NAMED, Calls, WakeReader, kind_of_file

X86 = {name: number for number, name in syscall_names("x86_64").items()}
TIMED, SHARED, SEVERAL, ONE = 0x800, 0x1000, 0x4000, 0x8000
PIPE, FILE = 0x1180, 0x81A4
MS = 1_000_000


class Entries:
    """What `WakeReader` uses of a map: (pair, call) -> (ns, times, mode). Crowded from 11 entries on."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.shape = Shape(16, 32, 160)
        self.keys = self.values = b""

    def read(self) -> int:
        self.keys = b"".join(struct.pack("<QQ", *key) for key in self.held)
        self.values = b"".join(struct.pack("<QQIIQ", ns, times, 9, mode, 0) for ns, times, mode in self.held.values())
        return len(self.held)

    def pair_list(self, _count: int) -> list[tuple[int, int]]:
        return list(self.held)

    def words(self, _count: int) -> memoryview:
        return memoryview(self.values).cast("Q")

    def delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self.held[key & (1 << 64) - 1, key >> 64]


def key(call: str, flags: int = 0, argument: int = 0, wakee: int = 1, waker: int = 2) -> tuple[int, int]:
    return wakee | waker << 32, X86[call] + 1 | flags | argument << 16


def reader_of(table: Entries) -> WakeReader:
    return WakeReader(cast(Map, table), Calls("x86_64"))


def rows(reader: WakeReader, whole: bool = True) -> list[Wakeup]:
    return sorted(reader.read(whole)[0], key=lambda wake: (wake.call, wake.address))


def test_descriptors_of_one_kind_are_one_row() -> None:
    table = Entries()
    table.held = {key("read", ONE, fd): (fd * MS, fd, PIPE) for fd in (3, 4)} | {key("read", ONE, 7): (9 * MS, 1, FILE)}
    assert {(one.kind, one.times, one.wait_ns) for one in rows(reader_of(table))} == {("pipe", 7, 7 * MS), ("file", 1, 9 * MS)}


def test_a_futex_has_its_own_row_once_it_matters() -> None:
    table, lock = Entries(), key("futex", SHARED, 0x7F00_1234_5670)
    reader = reader_of(table)
    table.held[lock] = (MS // 2, 5, 0)
    assert [(one.address, one.times, one.shared) for one in rows(reader)] == [(0, 5, True)]
    table.held[lock] = (4 * MS, 9, 0)
    told = rows(reader)
    assert [(one.address, one.times) for one in told] == [(0, 5), (0x7F00_1234_5670, 4)]
    assert sum(one.wait_ns for one in told) == 4 * MS, "nothing is counted twice"


def test_of_a_pair_with_many_futexes_few_are_named_and_none_is_lost() -> None:
    table = Entries()
    table.held = {key("futex", 0, 4096 * (i + 1)): (2 * MS, 1, 0) for i in range(3 * MOST_NAMED)}
    told = rows(reader_of(table))
    assert len([one for one in told if one.address]) == MOST_NAMED
    assert sum(one.times for one in told) == 3 * MOST_NAMED


def test_sums_go_on_after_the_map_was_cleaned_up() -> None:
    table = Entries()
    reader = reader_of(table)
    table.held = {key("futex", 0, 4096 * (i + 1)): (LITTLE_NS // 2, 1, 0) for i in range(40)}
    reader.read(False)
    reader.prune({1, 2})
    assert len(table.held) == 40, "what is new may still grow"
    reader.prune({1, 2})
    assert not table.held
    table.held = {key("futex", 0, 4096): (LITTLE_NS // 2, 1, 0)}
    assert [(one.times, one.wait_ns) for one in rows(reader, whole=False)] == [(41, 41 * LITTLE_NS // 2)]


def test_rows_of_ended_threads_go() -> None:
    table = Entries()
    reader = reader_of(table)
    table.held = {key("read", ONE, 3): (MS, 1, PIPE), key("read", ONE, 3, waker=5): (MS, 1, PIPE), key("nanosleep", waker=0): (MS, 1, 0)}
    reader.read(False)
    reader.prune({1, 2})
    assert {one.waker_tid for one in rows(reader)} == {2, 0}
    assert len(table.held) == 2


@pytest.mark.parametrize(
    ("packed", "mode", "name", "expected"),
    [
        (0, 0, b"", (-2, "")),
        (1023, 0, b"", (-1, "fault")),
        (X86["poll"] + 1 | TIMED, 0, b"", (7, "timer")),
        (X86["poll"] + 1 | SEVERAL, 0, b"", (7, "several")),
        (X86["wait4"] + 1, 0, b"", (61, "child")),
        (X86["ioctl"] + 1 | ONE, 0x21B6, b"nvidia0", (16, "nvidia")),
        (X86["read"] + 1 | ONE, 0x180, b"[eventfd", (0, "eventfd")),
        (X86["recvfrom"] + 1 | ONE, 0xC1FF | 1 << 16, b"", (45, "unix")),
        (X86["recvfrom"] + 1 | ONE, 0xC1FF | 10 << 16, b"", (45, "network")),
        (X86["io_uring_enter"] + 1, 0, b"", (426, "io_uring")),
        (X86["getpid"] + 1, 0, b"", (39, "")),
    ],
)
def test_what_a_call_waits_for(packed: int, mode: int, name: bytes, expected: tuple[int, str]) -> None:
    assert Calls("x86_64").decode(packed, mode, int.from_bytes(name, "little")) == expected


def test_a_file_that_could_not_be_looked_at_has_no_kind() -> None:
    assert kind_of_file(0, bytes(8)) == ""
