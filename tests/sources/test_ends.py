"""Who holds the other end of what a process reads from: real pipes and sockets between real processes."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop.sources.files import DescriptorBudget, open_files
from gputop.sources.procfs import ends
from gputop.sources.procfs.ends import Ends
from gputop.sources.waits import FUTEX, Waits
from tests.sources.test_procfs_real import Live, child, poll_a_minute
from tests.sources.test_procfs_real import live as live
from tests.wait import until

OWN = os.getpid()


def test_a_million_descriptors_are_not_listed_for_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fd").mkdir()
    for number in range(50):
        (tmp_path / "fd" / str(number)).symlink_to(f"socket:[{number}]")
    listed = list[str]()

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with real(path) as entries:
            yield (listed.append(one.name) or one for one in entries)  # type: ignore[func-returns-value]

    real = os.scandir
    monkeypatch.setattr(os, "scandir", scandir)
    assert len(list(open_files(f"{tmp_path}/", 5))) == len(listed) == 5


def piped() -> tuple[int, int]:
    return os.pipe()


def paired() -> tuple[int, int]:
    one, other = socket.socketpair()
    return one.detach(), other.detach()


def connected() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one.detach(), server.accept()[0].detach()


@contextmanager
def held_by_a_child(make: Callable[[], tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What we read from, and who alone has the other end."""
    ours, theirs = make()

    def hold() -> None:
        os.close(ours)
        poll_a_minute()

    with child(hold) as pid:
        os.close(theirs)
        until(lambda: not os.path.lexists(f"/proc/{pid}/fd/{ours}"))
        try:
            yield ours, pid
        finally:
            os.close(ours)


def searched(found: Ends, pids: list[int]) -> bool:
    """The whole of one search, which stops after some CPU time; whether it changed anything."""
    changed = [found.search_processes(pids)]
    while found._left:
        changed.append(found.search_processes(pids))
    return any(changed)


@pytest.mark.parametrize("make", [piped, paired, connected])
def test_who_writes_what_we_read(make: Callable[[], tuple[int, int]]) -> None:
    with held_by_a_child(make) as (descriptor, pid), child(poll_a_minute) as stranger:
        found = Ends("/proc/", OWN)
        found.add_descriptor(descriptor)
        some = [1, os.getppid(), os.getpid(), stranger, pid]  # of all, others come and go meanwhile
        assert searched(found, some)
        assert found.holders == {pid}
        assert not searched(found, some)


def test_who_only_reads_from_a_pipe_does_not_write_there() -> None:
    ours, theirs = os.pipe()

    def listen() -> None:
        os.close(theirs)
        poll_a_minute()

    with child(listen) as pid:
        until(lambda: not os.path.lexists(f"/proc/{pid}/fd/{theirs}"))
        found = Ends("/proc/", OWN)
        found.add_descriptor(ours)
        searched(found, [pid])
        assert not found.holders
    os.close(ours)
    os.close(theirs)


def fifo(tmp_path: Path) -> tuple[int, int]:
    """(to write, to read)"""
    path = tmp_path / "log"
    os.mkfifo(path)
    reads = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    return os.open(path, os.O_WRONLY), reads


@pytest.mark.parametrize("kind", ["pipe", "socket", "fifo"])
def test_who_reads_what_we_write(kind: str, tmp_path: Path) -> None:
    make = {"pipe": lambda: os.pipe()[::-1], "socket": paired, "fifo": lambda: fifo(tmp_path)}[kind]
    with held_by_a_child(make) as (descriptor, pid), child(poll_a_minute) as stranger:
        found = Ends("/proc/", OWN, writes=True)
        found.add_descriptor(descriptor, at_pipe=kind != "socket")
        assert searched(found, [pid, stranger])
        assert found.holders == {pid}


def test_who_only_writes_there_too_does_not_read_it() -> None:
    theirs, ours = os.pipe()

    def write() -> None:
        os.close(theirs)
        poll_a_minute()

    with child(write) as pid:
        until(lambda: not os.path.lexists(f"/proc/{pid}/fd/{theirs}"))
        found = Ends("/proc/", OWN, writes=True)
        found.add_descriptor(ours, at_pipe=True)
        assert not searched(found, [pid])
    os.close(ours)
    os.close(theirs)


def test_who_comes_later_is_found_and_who_goes_is_looked_for_again() -> None:
    with held_by_a_child(piped) as (descriptor, pid):
        found = Ends("/proc/", OWN)
        found.add_descriptor(descriptor)
        assert not searched(found, [1])
        ticks = [found.search_processes([pid]) for _ in range(ends.FIRST_PAUSE + 1)]
        assert ticks.count(True) == 1
        assert found.holders == {pid}
        assert any(found.search_processes([1]) for _ in range(4 * ends.FIRST_PAUSE))
        assert not found.holders


def test_a_plain_file_and_a_closed_descriptor_have_no_other_end(tmp_path) -> None:
    with open(tmp_path / "a", "w", encoding="ascii") as file:
        found = Ends("/proc/", OWN)
        found.add_descriptor(file.fileno())
        found.add_descriptor(1 << 20)
        assert not searched(found, [1])


def test_an_answer_that_is_an_error_or_cut_names_nobody() -> None:
    assert ends.unix_peer(1) == 0
    assert ends._peer_in(b"") == ends._peer_in(bytes(40)) == 0


def test_descriptors_that_are_read_in_turn_cost_a_link_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of a trainer read, each from its own pipe."""
    pipes = [os.pipe() for _ in range(2)]
    read = []
    monkeypatch.setattr(ends.os, "readlink", lambda path: read.append(path) or "/dev/null")
    found = Ends("/proc/", OWN)
    for _ in range(ends.ASK_EVERY):
        for reads, _writes in pipes:
            found.add_descriptor(reads)
    for pair in pipes:
        for descriptor in pair:
            os.close(descriptor)
    assert len(read) == len(pipes)


@contextmanager
def polls(how: str) -> Iterator[tuple[int, int, int]]:
    """(pid of a child that polls two descriptors with ``how``, those two)."""
    ours = [socket.socketpair() for _ in range(2)]
    polled = [theirs.fileno() for _, theirs in ours]

    def wait() -> None:
        if how == "select":
            select.select(polled, [], [])
        poller = select.epoll() if how == "epoll" else select.poll()
        for descriptor in polled:
            poller.register(descriptor, select.POLLIN)
        poller.poll()

    with child(wait) as pid:
        try:
            yield pid, *polled
        finally:
            for pair in ours:
                for one in pair:
                    one.close()


@pytest.mark.parametrize("how", ["poll", "select", "epoll"])
def test_which_descriptors_a_process_polls(how: str) -> None:
    with polls(how) as (pid, *polled):
        waits = Waits(f"/proc/{pid}/", DescriptorBudget())

        def found() -> list[int]:
            waits.read("S")
            return sorted(waits.polled)

        until(lambda: found() == sorted(polled))
        waits.close()


def test_who_polls_has_the_other_ends_of_all_that_it_polls() -> None:
    with held_by_a_child(paired) as (one, first), held_by_a_child(connected) as (other, second):
        found, asked = Ends("/proc/", OWN), []
        for _ in range(2 * ends.ASK_EVERY):
            found.add_polled(lambda: asked.append(1) or [one, other])
        searched(found, [first, second])
        assert found.holders == {first, second}
        assert len(asked) == 2


def test_who_is_likely_is_searched_first_and_everybody_if_that_was_in_vain() -> None:
    with held_by_a_child(piped) as (descriptor, pid), child(poll_a_minute) as stranger:
        found = Ends("/proc/", OWN)
        found.add_descriptor(descriptor)
        assert not found.search_processes([pid, stranger], likely=[stranger])
        assert found.search_processes([pid, stranger], likely=[stranger])
        assert found.holders == {pid}
        assert not found.search_processes([pid, stranger], likely=[])
        assert found.holders == {pid}, "one who does not wake it any more still holds the other end"


def in_dev_shm() -> mmap.mmap:
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def in_memfd() -> mmap.mmap:
    descriptor = os.memfd_create("ring")
    os.truncate(descriptor, 4096)
    memory = mmap.mmap(descriptor, 4096)
    os.close(descriptor)
    return memory


@pytest.mark.parametrize("make", [in_dev_shm, in_memfd, lambda: mmap.mmap(-1, 4096)], ids=["file", "memfd", "anonymous"])
def test_who_maps_the_memory_with_the_semaphore_that_a_process_waits_at(make: Callable[[], mmap.mmap]) -> None:
    libc = ctypes.CDLL(None)
    with child(poll_a_minute) as stranger:
        memory = make()
        semaphore = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        libc.sem_init(ctypes.c_void_p(semaphore), 1, 0)
        with child(lambda: libc.sem_wait(ctypes.c_void_p(semaphore))) as sleeper, child(poll_a_minute) as other:
            waits = Waits(f"/proc/{sleeper}/", DescriptorBudget())
            until(lambda: waits.read("S")[0] == FUTEX and waits.shared_memory != "")
            found = Ends("/proc/", sleeper)
            found.add_memory(waits.shared_memory)
            until(lambda: found.search_processes([stranger, sleeper, other, OWN]) and found.holders == {other, OWN})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to read another process's system call")
@pytest.mark.parametrize("who", ["main", "thread"])
def test_the_reader_of_what_a_trainer_or_its_thread_writes_is_found(live: Live, who: str) -> None:
    """The pipe is full, and its reader sleeps."""
    reads, writes = os.pipe()

    def fill() -> None:
        os.close(reads)
        piece = bytes(1 << 16)
        if who == "main":
            while True:
                os.write(writes, piece)
        thread = threading.Thread(target=lambda: [os.write(writes, piece) for _ in range(9)])
        thread.start()
        thread.join()

    def read_nothing() -> None:
        os.close(writes)
        time.sleep(120)

    with child(read_nothing) as reader, child(fill) as trainer:
        live.beat()
        os.close(reads)
        os.close(writes)
        live.until(lambda _: trainer in live.board.infos and live.board.infos[trainer].read_by == [reader], {trainer})
