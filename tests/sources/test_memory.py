"""Memory of trainers and workers: what is anonymous, and how much of it forked workers share."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from gputop.model.frame import Frame
from gputop.sources import Beat, Settings, parse
from gputop.sources.procfs import ProcfsSource
from gputop.sources.procfs import shared as reading
from tests.sources.children import LIFE_S, child
from tests.sources.fake_proc import FakeProc, Reader, sample
from tests.wait import PATIENCE_S, until

MIB = 1 << 20
ROLLUP = "5570a1cbc000-7ffc9ab0f000 ---p 00000000 00:00 0    [rollup]\nRss:    9000 kB\nPrivate_Dirty:    {} kB\nAnonymous:    {} kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    proc = FakeProc(tmp_path)
    for pid in (100, 101, 102):
        proc.process(pid)
        hold(proc, pid, 8192)
    return proc


def hold(proc: FakeProc, pid: int, anon_kb: int, swap_kb: int = 0) -> None:
    path = proc.root / f"proc/{pid}/status"
    proc.identity(pid)
    path.write_text(path.read_text().replace("Cpus_allowed:", f"RssAnon:\t   {anon_kb} kB\nVmSwap:\t   {swap_kb} kB\nCpus_allowed:"))


def test_anonymous_memory_of_trainers_and_workers_counts_what_is_swapped(proc: FakeProc, reader: Reader) -> None:
    hold(proc, 101, 4096, 1024)
    frame = reader.beat({100, 101})
    assert [sample(frame, pid).anon_bytes for pid in (100, 101, 102)] == [8 * MIB, 5 * MIB, None]


def test_it_is_read_twice_in_three_seconds(proc: FakeProc, reader: Reader) -> None:
    reader.beat({100})
    told = []
    for second in range(1, 81):
        hold(proc, 100, 1000 * second)
        proc.counters(100, oncpu=second)
        told.append(sample(reader.beat({100}), 100).anon_bytes)
    assert 5 <= len(set(told)) <= 7


def test_texts_without_these_lines_say_nothing() -> None:
    assert parse.anon_bytes(b"Name:\tkthreadd\nThreads:\t1\n") is None
    assert parse.shared_bytes(b"...[rollup]\nRss:  1 kB\n") is None
    assert parse.shared_bytes(ROLLUP.format(7000, 4000).encode()) == 0


def read_again(reader: Reader, pid: int) -> int | None:
    """What is told of a worker a while later."""
    reader.t_ns += 60 * 10**9
    reader.beat({100, 101, 102})
    thread = reader.source._shared._thread
    if thread is not None:
        thread.join(PATIENCE_S)
    return sample(reader.beat({100, 101, 102}), pid).shared_bytes


def test_what_a_worker_shares_is_anonymous_less_what_is_its_own(proc: FakeProc, reader: Reader) -> None:
    proc.write("proc/101/smaps_rollup", ROLLUP.format(2048, 8192))
    proc.write("proc/102/smaps_rollup", ROLLUP.format(4096, 8192))
    reader.beat({100, 101, 102})
    for _ in range(3):
        found = [read_again(reader, pid) for pid in (101, 102)]
    assert found == [6 * MIB, 4 * MIB]


def test_without_page_faults_it_is_not_read_again(proc: FakeProc, reader: Reader) -> None:
    proc.write("proc/101/smaps_rollup", ROLLUP.format(2048, 8192))
    reader.beat({100, 101, 102})
    for _ in range(4):
        read_again(reader, 101)
    proc.write("proc/101/smaps_rollup", ROLLUP.format(6144, 8192))
    assert {read_again(reader, 101) for _ in range(4)} == {6 * MIB}
    stat = (proc.root / "proc/101/stat").read_text()
    proc.write("proc/101/stat", stat.replace(" 31 0 7 0 ", " 9031 0 7 0 "))
    proc.write("proc/101/schedstat", "9 9 9\n")
    found = [read_again(reader, 101) for _ in range(4)]
    assert found[-1] == 2 * MIB


def test_one_that_may_not_be_read_is_asked_once(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(reading, "read_once", lambda path, _size: asked.append(path))
    reader.beat({100, 101, 102})
    for _ in range(6):
        assert read_again(reader, 101) is None
    assert len(asked) == len(set(asked)) == 3


def test_a_forked_worker_that_writes_to_what_it_inherited_shares_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "EVERY_NS", 0)
    monkeypatch.setattr(reading, "SHARE", 0.5)
    inherited = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    inherited.write(b"x" * 32 * MIB)
    ready, write = os.pipe()

    def work() -> None:
        os.read(ready, 1)
        for at in range(0, 24 * MIB, mmap.PAGESIZE):
            inherited[at] = 0
        time.sleep(LIFE_S)

    source, seen = ProcfsSource(Settings()), []
    source.open()

    def shared(pid: int) -> int:
        now = time.monotonic_ns()
        frame = Frame(len(seen), now, key=True)
        source.read(Beat(now, len(seen), True, hot=frozenset({pid}), trainers=frozenset({os.getpid()})), frame)
        seen.append(sample(frame, pid).shared_bytes or 0)
        return seen[-1]

    with child(work) as pid:
        until(lambda: shared(pid) >= 32 * MIB)
        before, anon = seen[-1], parse.anon_bytes(Path(f"/proc/{pid}/status").read_bytes())
        os.write(write, b"x")
        until(lambda: shared(pid) <= before - 23 * MIB)
        after = parse.anon_bytes(Path(f"/proc/{pid}/status").read_bytes())
    source.close()
    assert anon is not None
    assert after is not None
    assert after - anon < 4 * MIB  # resident memory does not show it
