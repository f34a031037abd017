"""Real processes: the truth of the counters, hostile ones, storms, and what an unprivileged reader gets."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Listener
from multiprocessing.managers import SyncManager
from pathlib import Path

import msgspec
import pytest

from gputop.model.board import Board
from gputop.model.frame import Frame, ProcSample
from gputop.sources import Beat, Settings
from gputop.sources.procfs import ProcfsSource
from tests.sources.children import LIFE_S, child
from tests.sources.fake_proc import info, sample
from tests.sources.lockers import sleeping
from tests.wait import PATIENCE_S

NOBODY = 65534


class Live:
    """Beats the source against the real /proc, as fast as asked."""

    def __init__(self) -> None:
        self.source = ProcfsSource(Settings())
        self.state = self.source.open()
        self.seq = -1
        self.board = Board()

    def beat(self, hot: set[int] | None = None, key: bool = False, wakers: set[int] | None = None, alone: set[int] | None = None) -> Frame:
        self.seq += 1
        now = time.monotonic_ns()
        frame = Frame(self.seq, now, key=key or not self.seq)
        of = {"hot": hot, "alone": alone, "wakers": wakers, "trainers": hot}
        beat = Beat(now, self.seq, frame.key, **{name: frozenset(pids or ()) for name, pids in of.items()})
        self.source.read(beat, frame)
        self.board.fold(frame)
        return frame

    def until(self, found: Callable[[Frame], bool], hot: set[int], wakers: set[int] | None = None, alone: set[int] | None = None) -> Frame:
        """Beat every 20 ms until a frame has it; a process may not have been read yet."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            frame = self.beat(hot, wakers=wakers, alone=alone)
            with suppress(IndexError, KeyError):
                if found(frame):
                    return frame
            time.sleep(0.02)
        raise AssertionError("not seen before the deadline")


@pytest.fixture
def live() -> Iterator[Live]:
    live = Live()
    yield live
    live.source.close()


def spin() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while True:
        pass


def sleep_alone() -> None:
    """Without the files of the test runner, of which other tests may have left one locked."""
    os.closerange(3, 4096)
    time.sleep(LIFE_S)


def poll_a_minute() -> None:
    """Again and again: on a busy machine a test takes longer."""
    while True:
        select.poll().poll(60_000)


def select_a_minute() -> None:
    while True:
        select.select([], [], [], 60)


def sched(pid: int) -> tuple[int, ...]:
    """An independent reading of what the samples hold."""
    with open(f"/proc/{pid}/schedstat") as file:
        numbers = [int(word) for word in file.read().split()]
    with open(f"/proc/{pid}/status") as file:
        switches = [int(line.split()[1]) for line in file if "ctxt_switches" in line]
    return (*numbers, *switches)


def counters(got: ProcSample) -> tuple[int | None, ...]:
    return got.oncpu_ns, got.run_delay_ns, got.timeslices, got.vol, got.invol


def test_counters_lie_between_independent_readings(live: Live) -> None:
    with child(spin) as one, child(spin) as two:
        live.beat()
        hot = {one, two}
        before = {pid: sched(pid) for pid in hot}
        first = live.beat(hot)
        for _ in range(15):
            earlier, before = before, {pid: sched(pid) for pid in hot}
            frame = live.beat(hot)
            after = {pid: sched(pid) for pid in hot}
            for pid in hot:
                got = counters(sample(frame, pid))
                # Times are of this beat; switches are read in every other one.
                least = before[pid][:3] + earlier[pid][3:]
                assert all(b <= (g or 0) <= a for b, g, a in zip(least, got, after[pid], strict=True)), (least, got, after)
            time.sleep(0.05)
        ran = [(sample(frame, pid).oncpu_ns or 0) - (sample(first, pid).oncpu_ns or 0) for pid in hot]
        assert min(ran) > 10_000_000


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_what_a_child_sleeps_in(live: Live) -> None:
    with child(poll_a_minute) as polling, child(select_a_minute) as selecting, child(lambda: os.read(os.pipe()[0], 1)) as reading:
        live.beat()
        hot = {polling, selecting, reading}

        def asleep(frame: Frame) -> bool:
            return [sample(frame, pid).syscall for pid in (polling, reading)] == [7, 0] and sample(frame, selecting).syscall in (23, 270)

        frame = live.until(asleep, hot)
        assert [sample(frame, pid).syscall_arg for pid in (polling, selecting)] == [60_000, 60_000]
        assert sample(frame, reading).wchan


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_whether_a_lock_is_waited_for_with_a_limit(live: Live) -> None:
    held = threading.Lock()
    with held, child(lambda: held.acquire()) as for_ever, child(lambda: held.acquire(timeout=LIFE_S)) as a_minute:
        live.beat()
        frame = live.until(lambda frame: [sample(frame, pid).syscall for pid in (for_ever, a_minute)] == [202, 202], {for_ever, a_minute})
        assert [sample(frame, pid).syscall_arg for pid in (for_ever, a_minute)] == [-1, 0]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_threads_are_asked_what_they_wait_in(live: Live) -> None:
    def load(count: int) -> None:
        for _ in range(count):
            threading.Thread(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()

    def locked() -> None:
        load(20)
        held = threading.Lock()
        held.acquire()
        held.acquire()

    def polling() -> None:
        load(20)
        poll_a_minute()

    def asked(frame: Frame, pid: int) -> tuple[int | None, list[int]]:
        one = sample(frame, pid)
        return one.syscall, sorted(thread.syscall for thread in one.threads if thread.syscall is not None)

    with child(locked) as waiter, child(polling) as poller:
        live.beat()
        seen = {waiter: (202, [0] * 16), poller: (7, [0] * 4)}
        most = live.until(lambda frame: all(asked(frame, pid) == calls for pid, calls in seen.items()), set(seen))
        assert all(thread.wchan for thread in sample(most, waiter).threads if thread.syscall is not None)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def share_descriptors() -> None:
    """As torch's workers do: a thread hands them out to who connects, while the main thread waits for room in a queue."""
    listener = Listener(family="AF_UNIX")
    threading.Thread(target=listener.accept, daemon=True).start()
    threading.Semaphore(0).acquire()


def test_who_serves_a_thread_for_each_client(live: Live) -> None:
    """A Manager, and nobody who is only ready for clients."""
    with SyncManager() as manager, child(share_descriptors) as other:
        queue = manager.Queue()  # the connection lasts as long as this
        queue.put(1)
        pid = manager._process.pid  # type: ignore[attr-defined]
        live.until(lambda _: live.board.infos[pid].serves, {pid, other})
        waits = {one.wchan for one in live.board.procs[other].threads}
        assert any(waits), "it was asked as well"
        assert not live.board.infos[other].serves


def test_a_program_that_a_worker_started_is_asked_too_behind_a_shell_as_well(live: Live) -> None:
    with child(lambda: subprocess.run(["sh", "-c", "sleep 60; true"], check=False)) as worker, child(poll_a_minute) as stranger:
        live.beat()

        def programs() -> dict[int, int | None]:
            started = {i.pid for i in live.board.infos.values() if i.ppid == worker}
            family = started | {i.pid for i in live.board.infos.values() if i.ppid in started}
            return {pid: live.board.procs[pid].syscall for pid in family if pid in live.board.procs}

        live.until(lambda _: sorted(call for call in programs().values() if call is not None) == [61, 230], {worker})
        assert live.board.procs[stranger].syscall is None
        live.until(lambda _: live.board.procs[stranger].syscall == 7, {worker}, wakers={stranger})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_threads_are_read_of_a_process_that_feeds_a_trainer_and_of_no_other(live: Live) -> None:
    def serve() -> None:
        def handle() -> None:
            while True:
                time.sleep(0.05)

        threading.Thread(target=handle, daemon=True).start()
        poll_a_minute()

    with child(serve) as feeder, child(serve) as other, child(poll_a_minute) as trainer:

        def waits(pid: int) -> set[int | None]:
            return {one.syscall for one in live.board.procs[pid].threads if one.tid != pid} if pid in live.board.procs else set()

        live.until(lambda _: waits(feeder) == {230} and other in live.board.procs, {trainer}, wakers={feeder})  # clock_nanosleep
        assert not live.board.procs[other].threads
        live.until(lambda _: not live.board.procs[feeder].threads, {trainer})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_who_writes_what_trainers_without_workers_read(live: Live) -> None:
    """What is found of one goes out as who wakes a trainer, and keeps nobody from looking for the other's."""
    pipes = [os.pipe(), os.pipe()]

    def read(ours: int) -> None:
        for own, theirs in pipes:
            os.close(theirs)
            if own != ours:
                os.close(own)
        os.read(ours, 1)

    def write(theirs: int) -> None:
        for own, other in pipes:
            os.close(own)
            if other != theirs:
                os.close(other)
        poll_a_minute()

    with (
        child(lambda: write(pipes[0][1])) as first, child(lambda: write(pipes[1][1])) as second,
        child(lambda: read(pipes[0][0])) as one, child(lambda: read(pipes[1][0])) as two,
    ):  # fmt: skip
        for pipe in pipes:
            for descriptor in pipe:
                os.close(descriptor)
        wakers: set[int] = set()

        def ends(_frame: Frame) -> bool:
            told = {pid: live.board.infos[pid].other_ends for pid in (one, two)}
            wakers.update(*told.values())
            return told == {one: [first], two: [second]}

        live.until(ends, {one, two}, wakers=wakers, alone={one, two})
        assert not live.board.infos[first].other_ends


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_whoever_wakes_a_trainer_is_looked_at_first_for_what_it_reads(live: Live) -> None:
    """The probe tells who wakes it; that this one holds the other end of its pipe, /proc alone."""
    reads, writes = os.pipe()

    def read() -> None:
        os.close(writes)
        os.read(reads, 1)

    def write() -> None:
        os.close(reads)
        poll_a_minute()

    def neither() -> None:
        os.closerange(3, 4096)
        poll_a_minute()

    with child(write) as writer, child(neither) as other, child(read) as reader:
        for descriptor in (reads, writes):
            os.close(descriptor)
        live.until(lambda _: live.board.infos[reader].other_ends == [writer], {reader}, wakers={writer, other}, alone={reader})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_who_writes_what_a_thread_of_a_trainer_reads_over_loopback(live: Live) -> None:
    """Its main thread waits for the thread, and reads nothing itself."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        kept = listener.accept()  # noqa: F841  its connection lives as long as it
        poll_a_minute()

    def train() -> None:
        connection = socket.create_connection(listener.getsockname())
        listener.close()
        threading.Thread(target=connection.recv, args=(1,), daemon=True).start()
        threading.Event().wait(LIFE_S)

    with child(serve) as service, child(train) as trainer:
        listener.close()
        live.until(lambda _: live.board.infos[trainer].other_ends == [service], {trainer}, alone={trainer})


def test_who_reads_what_a_trainer_waits_to_write(live: Live) -> None:
    theirs, ours = os.pipe()

    def write() -> None:
        os.close(theirs)
        while True:
            os.write(ours, bytes(1 << 16))

    def hold() -> None:
        os.close(ours)
        poll_a_minute()

    with child(hold) as logger, child(write) as trainer:
        os.close(theirs)
        os.close(ours)
        live.until(lambda _: live.board.infos[trainer].read_by == [logger], {trainer})
        assert not live.board.infos[trainer].other_ends


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_who_holds_the_file_that_somebody_asks_or_waits_for(live: Live, tmp_path: Path) -> None:
    path, ready = tmp_path / "samples.db", os.pipe()
    path.touch()

    def holding() -> None:
        fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX)
        os.write(ready[1], b"x")
        poll_a_minute()

    def asking() -> None:
        file = os.open(path, os.O_RDWR)
        while True:
            with suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.01)

    with child(holding) as holder:
        os.read(ready[0], 1)
        waits = child(lambda: fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX))
        with child(asking) as asker, waits as waiter, child(sleep_alone) as sleeper:
            live.beat()
            hot = {holder, asker, waiter, sleeper}
            frame = live.until(lambda frame: [sample(frame, pid).locked_by for pid in (asker, waiter)] == [holder, holder], hot)
            assert [sample(frame, pid).locked_by for pid in (holder, sleeper)] == [None, None]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
def test_siblings_that_take_turns_at_a_lock_and_close_its_file_meanwhile(live: Live, tmp_path: Path) -> None:
    path = tmp_path / "archive.lock"

    def turning() -> None:
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                time.sleep(0.3)
            os.close(file)
            time.sleep(0.05)

    with child(turning) as one, child(turning) as other, child(sleep_alone) as sleeper:
        live.beat()
        hot = {one, other}
        assert sample(live.until(lambda frame: sample(frame, one).locked_by == other, hot), other).locked_by != other
        live.until(lambda frame: sample(frame, other).locked_by == one, hot)
        assert live.board.procs[sleeper].locked_by is None, "nobody asks for who is not hot"


def test_hostile_name_and_command_line(live: Live) -> None:
    name = b") R \x1b[2J\xff"
    code = (
        "import ctypes, time, sys\n"
        f"ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\n"
        "print('ready', flush=True)\n"
        f"time.sleep({LIFE_S})"
    )
    with subprocess.Popen([sys.executable, "-c", code, "x" * 65_000, "\x1b]0;owned\x07"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            frames = [live.beat(), live.beat({process.pid})]  # the first has few processes
            who = info(frames, process.pid)
            assert who.comm.encode("utf-8", "replace").startswith(b") R \x1b[2J")
            assert sum(map(len, who.cmdline)) <= 4096
            assert sample(frames[-1], process.pid).state in "SRD"
            for frame in frames:
                assert msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Frame).infos == frame.infos
        finally:
            process.kill()


def test_threads_and_their_names(live: Live) -> None:
    ready, done = os.pipe(), threading.Event()

    def named() -> None:
        ctypes.CDLL(None).prctl(15, b"pt_data_pin", 0, 0, 0)
        done.wait()

    def work() -> None:
        threads = [threading.Thread(target=named, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        os.write(ready[1], b"x")
        time.sleep(LIFE_S)

    with child(work) as pid:
        os.read(ready[0], 1)
        live.beat()
        frame = live.until(lambda frame: [t.comm for i in frame.infos if i.pid == pid for t in i.threads] == ["pt_data_pin"] * 3, {pid})
        tids = {t.tid for t in info(frame, pid).threads}
        frame = live.until(lambda frame: len(sample(frame, pid).threads) == 4, {pid})
        assert {t.tid for t in sample(frame, pid).threads} == tids | {pid}
        assert all(t.state in "SRD" for t in sample(frame, pid).threads if t.state)


def test_a_process_that_ends_is_gone_in_the_next_tick(live: Live) -> None:
    with child(poll_a_minute) as pid:
        live.beat()
        live.beat({pid})
    frame = live.beat({pid})
    assert pid in frame.gone
    assert pid not in {p.pid for p in live.beat(key=True).procs}


def blink() -> int:
    """A child that lives for 20 ms."""
    pid = os.fork()
    if not pid:
        time.sleep(0.02)
        os._exit(0)
    return pid


def storm() -> None:
    """About five hundred births and deaths a second, until it is ended."""
    while True:
        for pid in [blink() for _ in range(10)]:
            os.waitpid(pid, 0)


def test_storm_of_births_and_deaths(live: Live) -> None:
    board, seen = Board(), set()
    with child(storm) as pid:
        began = time.monotonic()
        while time.monotonic() < began + (1.5 if seen else PATIENCE_S):
            frame = live.beat({pid, *list(board.procs)[-20:]})
            board.fold(msgspec.msgpack.decode(msgspec.msgpack.encode(frame), type=Frame))
            assert set(board.infos) == set(board.procs)
            seen |= {i.pid for i in frame.infos if i.ppid == pid}
            time.sleep(0.005)
    assert seen
    deadline = time.monotonic() + PATIENCE_S
    while seen & set(board.procs) and time.monotonic() < deadline:
        time.sleep(0.1)
        board.fold(live.beat())
    assert not seen & set(board.procs)


def test_an_answer_of_a_process_that_has_ended_comes_too_late(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with child(spin) as pid:
        live.until(lambda frame: any(one.pid == pid for one in frame.procs), {pid})
        late = live.source._processes[pid]
    monkeypatch.setattr(live.source._transports, "read", lambda *_: [late])
    live.until(lambda frame: pid in frame.gone, {pid})
    for _ in range(3):
        assert pid not in {one.pid for one in live.beat({pid}).infos}
    assert pid not in live.board.infos


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_an_unprivileged_reader_sees_the_counters_and_says_what_it_cannot() -> None:
    with child(poll_a_minute) as victim:
        reading, writing = os.pipe()

        def read() -> None:
            os.setgroups([])
            os.setuid(NOBODY)
            live = Live()
            live.beat()
            frame = live.until(lambda _: bool(live.source._processes[victim].info.wait_unreadable), {victim})
            got, who = sample(frame, victim), live.source._processes[victim].info
            told = [live.state.state, got.oncpu_ns, got.vol, got.read_bytes, got.syscall]
            told += [who.uses_cuda, who.env, who.uid, who.wait_unreadable]
            os.write(writing, json.dumps(told).encode())

        with child(read):
            os.close(writing)
            data = os.read(reading, 65536)
            os.close(reading)
        state, oncpu, vol, read_bytes, syscall, cuda, env, uid, why = json.loads(data)
        assert state == "partial"
        assert oncpu > 0
        assert vol > 0
        assert (read_bytes, syscall, cuda, env, uid) == (None, None, None, {}, 0)
        assert "permi" in why


@pytest.mark.parametrize(("ends", "code"), [("raise SystemExit", 0), ("raise SystemExit(3)", 3 << 8), ("os.kill(os.getpid(), 9)", 9)])
def test_how_a_zombie_ended_is_known(ends: str, code: int) -> None:
    live = Live()
    child = subprocess.Popen([sys.executable, "-c", f"import os, sys; sys.stdin.read(); {ends}"], stdin=subprocess.PIPE)
    try:
        frame = live.until(lambda frame: any(one.pid == child.pid for one in frame.procs), {child.pid})
        assert sample(frame, child.pid).exit_code is None
        assert child.stdin is not None
        child.stdin.close()
        frame = live.until(lambda frame: any(one.pid == child.pid and one.state == "Z" for one in frame.procs), {child.pid})
        assert sample(frame, child.pid).exit_code == code
    finally:
        child.kill()
        child.wait()
        live.source.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are x86-64's")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
@pytest.mark.parametrize("where", ["thread", "process"])
def test_who_holds_the_mutex_in_which_a_main_thread_sleeps(live: Live, where: str) -> None:
    with sleeping("normal", where) as (holder, tid, sleeper):
        live.beat()
        frame = live.until(lambda frame: sample(frame, sleeper).lock_tid == tid, {sleeper, holder})
        assert sample(frame, sleeper).locked_by == (None if where == "thread" else holder)
        if where == "process":
            assert (sample(frame, holder).locked_by, sample(frame, holder).lock_tid) == (None, None)
