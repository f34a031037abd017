"""Who serves and who asks, by the sockets of real processes."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gputop.sources.procfs import ends
from gputop.sources.procfs.ends import SocketUse
from tests.sources.test_procfs_real import Live, child
from tests.sources.test_procfs_real import live as live

Listener = Callable[[], socket.socket]


def tcp() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def tcp6() -> socket.socket:
    return socket.create_server(("::1", 0), family=socket.AF_INET6)


def unix() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0gputop-test-{os.getpid()}")
    listener.listen()
    return listener


@pytest.fixture(scope="module")
def peer() -> Iterator[tuple[str, int]]:
    """Somebody who can be asked, the only listener of this process."""
    with tcp() as listener:
        yield listener.getsockname()


@contextmanager
def told(work: Callable[[], object]) -> Iterator[int]:
    """The pid of a child that has done ``work`` and then sleeps in a poll."""
    reads, writes = os.pipe()

    def run() -> None:
        os.closerange(0, writes)  # whatever the tests before left open, below and above
        os.closerange(writes + 1, 4096)
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        kept = work()  # noqa: F841  its sockets live as long as it
        os.write(writes, b"%d\n" % os.getpid())
        select.poll().poll(60_000)

    with child(run) as pid:
        assert int(os.read(reads, 16)) > 0
        yield pid
    for fd in (reads, writes):
        with suppress(OSError):
            os.close(fd)


def use(pid: int, *above: int) -> str:
    return SocketUse("/proc/", pid).read(above)


@pytest.mark.parametrize("listen", [tcp, tcp6, unix])
def test_one_that_listens_can_be_asked(listen: Listener) -> None:
    with told(listen) as pid:
        assert use(pid) == "listening"


def test_one_with_a_connection_asks(peer: tuple[str, int]) -> None:
    with told(lambda: socket.create_connection(peer)) as pid:
        assert use(pid) == "connected"


def test_a_pair_of_its_own_is_no_connection() -> None:
    with told(lambda: socket.socketpair()) as pid:
        assert use(pid) == "none"


def test_who_is_started_by_one_that_listens_is_asked_through_it(peer: tuple[str, int]) -> None:
    with told(lambda: socket.create_connection(peer)) as pid:
        assert use(pid, os.getpid()) == "listening"


def test_a_login_that_listens_is_another_session(peer: tuple[str, int]) -> None:
    with told(lambda: (os.setsid(), socket.create_connection(peer))) as pid:
        assert use(pid, os.getpid()) == "connected"


def test_above_one_that_listens_nobody_need_be_readable(tmp_path: Path) -> None:
    with told(tcp) as pid:
        (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
        assert SocketUse(f"{tmp_path}/", pid).read([os.getpid()]) == "listening"


def test_one_that_may_be_asked_through_who_cannot_be_read_is_not_known(tmp_path: Path, peer: tuple[str, int]) -> None:
    with told(lambda: socket.create_connection(peer)) as pid:
        (tmp_path / str(pid)).symlink_to(f"/proc/{pid}")
        assert SocketUse(f"{tmp_path}/", pid).read([os.getpid()]) == ""


def test_who_is_gone_is_not_known() -> None:
    assert use(2**22 + 1) == ""


def test_more_sockets_than_a_page_of_their_list_holds() -> None:
    with told(lambda: ([socket.socket(socket.AF_UNIX) for _ in range(300)], unix())) as pid:
        assert use(pid) == "listening"


@contextmanager
def reading(work: Callable[[], socket.socket]) -> Iterator[tuple[int, int]]:
    """A child that waits at a socket for what it reads: its pid, and the descriptor."""
    reads, writes = os.pipe()

    def run() -> None:
        os.closerange(3, reads)
        at = work()
        os.write(writes, b"%d\n" % at.fileno())
        at.recv(1)

    with child(run) as pid:
        descriptor = int(os.read(reads, 16))
        yield pid, descriptor
    for fd in (reads, writes):
        with suppress(OSError):
            os.close(fd)


def test_one_that_listens_and_reads_from_whom_it_asked_waits_for_an_answer(peer: tuple[str, int]) -> None:
    """A first rank has a store for the others to connect to, and fetches its batches itself."""
    kept = []

    def asks() -> socket.socket:
        kept.append(tcp())
        return socket.create_connection(peer)

    with reading(asks) as (pid, descriptor):
        assert SocketUse("/proc/", pid).read((), descriptor) == "connected"
        assert SocketUse("/proc/", pid).read(()) == "listening"


def test_one_that_reads_from_a_client_can_be_asked() -> None:
    kept = []

    def serves() -> socket.socket:
        kept.append(tcp())
        kept.append(socket.create_connection(kept[0].getsockname()))
        return kept[0].accept()[0]

    with reading(serves) as (pid, descriptor):
        assert SocketUse("/proc/", pid).read((), descriptor) == "listening"


@pytest.mark.parametrize(
    ("work", "known"),
    [(socket.create_connection, "connected"), (lambda _: socket.socketpair(), "none"), (lambda _: tcp(), "listening")],
    ids=["connection", "pair", "listener"],
)
def test_it_is_read_of_a_trainer_without_workers_that_sleeps_for_anything(
    work: Callable[[tuple[str, int]], object], known: str, peer: tuple[str, int], live: Live
) -> None:
    def run() -> None:
        os.setsid()
        os.closerange(3, 4096)
        kept = work(peer)  # noqa: F841
        time.sleep(60)

    with child(run) as pid:
        live.until(lambda _: pid in live.board.infos and live.board.infos[pid].sockets == known, {pid}, alone={pid})


def test_it_is_not_read_of_one_with_workers_that_does_not_poll(live: Live) -> None:
    """It waits for these."""
    with child(lambda: (os.closerange(3, 4096), time.sleep(60))) as pid, told(tcp) as other:
        live.until(lambda _: other in live.board.infos and live.board.infos[other].sockets == "listening", {pid, other})
        assert not live.board.infos[pid].sockets


def test_a_trainer_that_sleeps_in_accept_is_told_to_listen(live: Live) -> None:
    def serve() -> None:
        os.setsid()
        tcp().accept()

    with child(serve) as pid:
        live.until(lambda _: pid in live.board.infos and live.board.infos[pid].sockets == "listening", {pid})


def test_the_tables_are_read_twice_for_the_same_sockets(peer: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    kept = ends.rows_of_table
    monkeypatch.setattr(ends, "rows_of_table", lambda path, columns, size: read.append(path) or kept(path, columns, size))
    with told(lambda: socket.create_connection(peer)) as pid:
        asked = SocketUse("/proc/", pid)
        found = [(asked.read(()), len(read)) for _ in range(4)]
    assert [use for use, _ in found] == ["connected"] * 4
    assert 0 < found[0][1] < found[1][1] == found[2][1] == found[3][1]


def test_one_without_sockets_reads_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "rows_of_table", lambda *_: pytest.fail("a table was read"))
    with told(lambda: None) as pid:
        assert SocketUse("/proc/", pid).read(()) == "none"


def test_a_socket_that_listens_later_is_seen() -> None:
    go_reads, go_writes = os.pipe()
    done_reads, done_writes = os.pipe()
    ready_reads, ready_writes = os.pipe()

    def run() -> None:
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, ready_writes, go_reads, done_writes}:
            with suppress(OSError):
                os.close(fd)
        made = socket.socket()
        os.write(ready_writes, b"1")
        os.read(go_reads, 1)
        made.listen()
        os.write(done_writes, b"1")
        select.poll().poll(60_000)

    with child(run) as pid:
        os.read(ready_reads, 1)
        asked = SocketUse("/proc/", pid)
        assert asked.read(()) == "connected"  # no UNIX socket, and it takes no requests
        os.write(go_writes, b"1")
        os.read(done_reads, 1)
        assert asked.read(()) == "listening"
    for fd in (go_reads, go_writes, done_reads, done_writes, ready_reads, ready_writes):
        os.close(fd)


def test_a_server_at_work_that_a_trainer_asks_is_known_to_listen(live: Live) -> None:
    """It never sleeps while it is looked at."""
    port_reads, port_writes = os.pipe()

    def serve() -> None:
        with tcp() as listener:
            os.write(port_writes, b"%d\n" % listener.getsockname()[1])
            kept = listener.accept()  # noqa: F841
            while True:
                pass

    def ask() -> None:
        os.setsid()
        with socket.create_connection(("127.0.0.1", int(os.read(port_reads, 16)))) as made:
            made.recv(1)

    with child(serve) as server, child(ask) as trainer:
        live.until(lambda _: server in live.board.infos and live.board.infos[server].sockets == "listening", {trainer}, alone={trainer})
    os.close(port_reads)
    os.close(port_writes)
