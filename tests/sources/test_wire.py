"""How long ranks' connections have data on the wire: real sockets, on loopback and in a network namespace of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

import pytest
from msgspec.structs import replace

from gputop.model.frame import Frame, ProcSample
from gputop.sources.procfs import wire
from gputop.sources.procfs.process import Process
from tests.require import require
from tests.sources.children import child
from tests.sources.fake_proc import sample
from tests.sources.test_procfs_real import Live
from tests.sources.test_procfs_real import live as live

PIECE = bytes(1 << 20)
RANK = """
import os, socket, sys, time
rank, pause_s, unread_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
if rank:
    deadline = time.monotonic() + 60
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", 29400), 60)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
else:
    with socket.create_server(("127.0.0.1", 29400)) as server:
        peer = server.accept()[0]
piece = bytes(1 << 18)
def receive():
    left = len(piece)
    while left:
        left -= len(peer.recv(left))
os.write(1, b"%d\\n" % os.getpid())
while True:
    if rank:
        time.sleep(pause_s)
        peer.sendall(piece)
        time.sleep(unread_s)
        receive()
    else:
        receive()
        peer.sendall(piece)
"""


@contextmanager
def ranks(shaping: str, pause_s: float, unread_s: float = 0.0) -> Iterator[list[int]]:
    """Pids of two processes that exchange 256 KiB again and again, in a namespace whose loopback is shaped by ``tc``. The second one pauses
    before it sends, and does not read for ``unread_s`` after that."""
    one, two = (f"{sys.executable} -c '{RANK}' {rank}" for rank in range(2))
    start = f"ip link set lo up && {shaping} {{ {one} 0 0 & exec {two} {pause_s} {unread_s}; }}"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", start], stdout=subprocess.PIPE, text=True, start_new_session=True) as shell:
        try:
            assert shell.stdout is not None
            yield [int(shell.stdout.readline()) for _ in range(2)]
        finally:
            os.killpg(shell.pid, 9)


def over(live: Live, pids: set[int], seconds: float) -> list[tuple[ProcSample, ProcSample]]:
    """Samples of the processes over at least so many seconds, first and last."""
    known = live.until(lambda frame: all(sample(frame, pid).wire_busy_ns is not None for pid in pids), pids)
    first = {pid: sample(known, pid) for pid in pids}
    until_ns = known.t_ns + int(seconds * 1e9)
    last = live.until(lambda frame: frame.t_ns >= until_ns, pids)
    return [(first[pid], sample(last, pid)) for pid in pids]


def busy(pair: tuple[ProcSample, ProcSample]) -> float:
    old, new = pair
    return ((new.wire_busy_ns or 0) - (old.wire_busy_ns or 0)) / (new.t_ns - old.t_ns)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FIND_NS", 100_000_000)
    monkeypatch.setattr(wire, "SHARE", 0.05)


def test_a_slow_wire_is_busy_and_one_behind_a_late_rank_is_not(live: Live) -> None:
    require("net")
    slow = "ip link set lo mtu 1500 && tc qdisc add dev lo root tbf rate 20mbit burst 64kb limit 4mb &&"
    with ranks(slow, 0.01) as here, ranks("", 0.25) as late:
        live.beat()
        pairs = over(live, {*here, *late}, 5.0)
        shares = {pair[0].pid: busy(pair) for pair in pairs}
        found = {pair[1].pid: pair[1] for pair in pairs}
    assert sum(shares[pid] for pid in here) >= 0.5, shares  # they send by turns, and wait for a CPU between them where others run
    assert max(shares[pid] for pid in late) <= 0.1, shares
    for old, new in pairs:
        assert new.wire_interface == "lo"
        assert (new.wire_sent_bytes or 0) - (old.wire_sent_bytes or 0) >= 1 << 18
        assert (new.wire_received_bytes or 0) - (old.wire_received_bytes or 0) >= 1 << 18
    assert min(found[pid].wire_rtt_us or 0 for pid in here) > max(found[pid].wire_rtt_us or 0 for pid in late)


def test_what_a_late_peer_acknowledges_late_is_no_time_on_the_wire(live: Live) -> None:
    """Its kernel holds the acknowledgement of what it does not read back: a small window keeps the rest with the sender."""
    require("net")
    with ranks("ip link set lo mtu 1500 &&", 0.0, unread_s=0.12) as here:
        live.beat()
        shares = [busy(pair) for pair in over(live, {*here}, 5.0)]
    assert max(shares) <= 0.15, shares


def answer(busy_us: int, held_us: int = 0, unread_bytes: int = 0, **more: object) -> wire._Answer:
    """A connection as it was read."""
    fields = {"acked": 0, "received": 0, "retrans": 0, "rtt_us": 100, "arrived_ms": 0, "segments": 0, "mss": 1448}
    counters = wire.Counters(busy_us, **fields | {"flies": True, "is_silent": True} | more)  # type: ignore[arg-type]
    return wire._Answer(1, socket.AF_INET, bytes(48), unread_bytes, counters, held_us)


@pytest.mark.parametrize(
    ("after", "there", "counted_us"),
    [
        (answer(100_000), None, 0),
        (answer(100_000, retrans=1), None, 100_000),  # it waits for the wire's timeout
        (answer(100_000, is_silent=False), None, 100_000),
        (answer(100_000, flies=False), None, 100_000),
        (answer(100_000, is_silent=False), answer(0, unread_bytes=1), 0),
        (answer(100_000), answer(0), 100_000),  # on this host nothing lies unread: the data are on their way
        (answer(300_000, is_silent=True), None, 100_000),
    ],
)
def test_time_in_which_a_peer_holds_its_acknowledgement_back_is_taken_away(
    after: wire._Answer, there: wire._Answer | None, counted_us: int
) -> None:
    span = wire._span(answer(0), after, there, 200_000_000)
    assert span is not None
    assert span.busy_us == counted_us


def test_time_that_is_held_is_taken_from_what_comes_later_too() -> None:
    first = wire._span(answer(0), answer(50_000), None, 200_000_000)
    assert first is not None
    later = wire._span(first.after, answer(190_000, flies=False), None, 200_000_000)
    assert later is not None
    assert (first.busy_us, later.busy_us) == (0, 0)


def test_a_peer_that_does_not_read_is_no_slow_wire(live: Live) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def fill() -> None:
        with socket.create_connection(server.getsockname()) as made:
            while True:
                made.sendall(PIECE)

    def other() -> None:
        taken, _ = server.accept()
        time.sleep(60)
        taken.close()

    with child(other) as reads, child(fill) as sends:
        live.beat()
        pairs = {pair[0].pid: busy(pair) for pair in over(live, {reads, sends}, 3.0)}
    assert pairs[sends] < 0.2
    server.close()


def test_connections_that_come_and_go_never_lower_a_counter(live: Live) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def anew() -> None:
        while True:
            with ExitStack() as held:
                made = [held.enter_context(socket.create_connection(server.getsockname())) for _ in range(3)]
                taken = [held.enter_context(server.accept()[0]) for _ in made]
                for _ in range(400):
                    for one, other in zip(made, taken, strict=True):
                        one.sendall(PIECE[: 1 << 14])
                        other.recv(1 << 14)
                    time.sleep(0.01)

    with child(anew) as one, child(lambda: time.sleep(60)) as two:
        live.beat()
        seen: list[ProcSample] = []

        def enough(frame: Frame) -> bool:
            found = next((proc for proc in frame.procs if proc.pid == one), None)
            if found is not None and found.wire_sent_bytes is not None:
                seen.append(found)
            return bool(seen) and (seen[-1].wire_sent_bytes or 0) >= 1 << 20

        live.until(enough, {one, two})
    server.close()
    for name in ("wire_busy_ns", "wire_sent_bytes", "wire_received_bytes", "wire_retrans"):
        values = [getattr(proc, name) for proc in seen]
        assert values == sorted(values)


def test_a_namespace_is_left_when_its_ranks_have_ended(live: Live) -> None:
    """A socket there would keep it alive."""
    require("net")
    with ranks("", 0.05) as pids:
        live.beat()
        over(live, {*pids}, 0.1)
        assert len(live.source._wires._asked) == 1
    live.until(lambda _: not live.source._wires._asked, set())


@pytest.mark.parametrize(
    ("family", "own", "names", "wanted"),
    [
        (socket.AF_INET, bytes([10, 0, 0, 1]), {bytes([10, 0, 0, 1]): "eth0"}, "eth0"),
        (socket.AF_INET, bytes([10, 0, 0, 2]), {bytes([10, 0, 0, 1]): "eth0"}, "10.0.0.2"),
        (socket.AF_INET6, bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 1]), {bytes([10, 0, 0, 1]): "ib0"}, "ib0"),
        (socket.AF_INET6, bytes(15) + b"\1", {}, "::1"),
    ],
)
def test_the_interface_of_an_address(family: int, own: bytes, names: dict[bytes, str], wanted: str) -> None:
    assert wire.interface_of(family, bytes(4) + own.ljust(16, b"\0") + bytes(28), names) == wanted


def test_a_lone_trainer_without_peers_is_not_read(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "open_sockets", lambda _folder: pytest.fail("its descriptors were read"))
    with child(lambda: time.sleep(60)) as pid:
        for _ in range(3):
            live.beat({pid})


def fed_by(live: Live, send: Callable[[socket.socket], object], seconds: float) -> float:
    """Share of the time in which data kept arriving at a feeder's connection, to which a server sends again and again."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        taken, _ = server.accept()
        while True:
            send(taken)

    def pull(writes: int) -> None:
        made = socket.create_connection(server.getsockname())
        server.close()
        while True:
            made.recv(1 << 20)
            os.write(writes, b"x")

    def train(reads: int) -> None:
        os.close(writes)
        while os.read(reads, 1 << 16):
            pass

    reads, writes = os.pipe()
    with child(serve) as sends, child(lambda: pull(writes)) as feeder, child(lambda: train(reads)) as trainer:
        server.close()
        os.close(reads)
        os.close(writes)
        live.beat()
        seen: list[ProcSample] = []

        def enough(frame: Frame) -> bool:
            found = next((proc for proc in frame.procs if proc.pid == feeder), None)
            seen.extend([found] if found is not None and found.wire_arriving_ns is not None else [])
            return bool(seen) and seen[-1].t_ns - seen[0].t_ns >= seconds * 1e9

        live.until(enough, {trainer}, wakers={feeder, sends}, alone={trainer})
    return ((seen[-1].wire_arriving_ns or 0) - (seen[0].wire_arriving_ns or 0)) / (seen[-1].t_ns - seen[0].t_ns)


def test_data_that_a_feeder_is_sent_slowly_keep_arriving_and_messages_do_not(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    require("net")
    monkeypatch.setattr(wire, "EVERY_NS", 100_000_000)

    def slowly(taken: socket.socket) -> None:
        taken.sendall(PIECE[: 1 << 16])
        time.sleep(0.005)

    def message(taken: socket.socket) -> None:
        taken.sendall(PIECE[:500])
        time.sleep(0.005)

    assert any(fed_by(live, slowly, 1.5) >= 0.7 for _ in range(5)), "others may keep the sender from its CPU for a while"
    assert fed_by(live, message, 1.5) <= 0.1


BEFORE = wire.Counters(busy_us=0, acked=0, received=10_000, retrans=0, rtt_us=90, arrived_ms=4, segments=0xFFFFFFFE, mss=1448)


@pytest.mark.parametrize(
    ("segments", "received", "arrived_ms", "mss", "arrives"),
    [
        (98, 154_800, 4, 1448, True),
        (98, 154_800, 200, 1448, False),  # now and then
        (98, 60_000, 4, 1448, False),  # messages
        (98, 660_000, 4, 65_483, True),  # over loopback, in pieces of a few kilobytes
        (98, 330_000, 4, 65_483, False),
        (0xFFFFFFFF, 11_448, 0, 1448, False),  # one segment
        (0xFFFFFFFE, 10_000, 0, 1448, False),
    ],
)
def test_a_stream_is_what_comes_all_the_time_in_large_segments(
    segments: int, received: int, arrived_ms: int, mss: int, arrives: bool
) -> None:
    after = replace(BEFORE, segments=segments, received=received, arrived_ms=arrived_ms, mss=mss)
    assert wire.keeps_arriving(BEFORE, after) is arrives


@pytest.mark.parametrize(
    ("sent_ms", "arrived_ms", "awaits"),
    [
        (120, 900, True),
        (900, 120, False),  # the answer has come
        (50, 50, False),
        (10, 20_000, False),  # only sent, as a log is
    ],
)
def test_an_answer_is_awaited_where_data_were_sent_last_and_some_came_lately(sent_ms: int, arrived_ms: int, awaits: bool) -> None:
    assert wire.awaits_answer(replace(BEFORE, sent_ms=sent_ms, arrived_ms=arrived_ms)) is awaits


@pytest.mark.parametrize(
    ("serves", "peer", "is_under_way"),
    [(True, b"\x0a\0\0\x09", True), (False, b"\x0a\0\0\x09", False), (True, b"\x0a\0\0\x02", False), (True, b"\x7f\0\0\x05", False)],
    ids=["another host's", "of a client's own", "this host's", "loopback's"],
)
def test_an_answer_is_under_way_to_a_server_from_another_host(serves: bool, peer: bytes, is_under_way: bool) -> None:
    key = bytearray(48)
    key[20:24] = peer
    after = replace(answer(0), key=bytes(key))
    known = wire._Known(cast(Process, None), 1, serves=serves, interfaces={b"\x0a\0\0\x02": "eth0", b"\x7f\0\0\x01": "lo"})
    span = wire._Span(after, 0, 0, 0, 0, 100, arrives=False, is_asked=True)
    assert known.has_under_way(span) is is_under_way


def test_answers_to_an_earlier_request_are_passed_over() -> None:
    """As they wait where a dump was longer than what is read of it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        inode = os.fstat(one.fileno()).st_ino
        with wire._netlink() as asked:
            [known] = [found for found in wire._dump(asked, wire._ESTABLISHED) if found.inode == inode]
        ours, kernel = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours, kernel, wire._netlink() as asked:
            ours.settimeout(1.0)
            request = wire._REQUEST.pack(known.family, socket.IPPROTO_TCP, 2, 0, wire._ESTABLISHED) + known.key
            asked.send(wire._NLMSG.pack(wire._NLMSG.size + len(request), wire.BY_FAMILY, wire.REQUEST, 7, 0) + request)
            answer = asked.recv(1 << 16)
            for number in (5, 6, 7):
                kernel.send(answer[:8] + number.to_bytes(4, sys.byteorder) + answer[12:])
            assert len(list(wire._answers(ours, b"x", 7, 1))) == 1
            ours.setblocking(False)
            with pytest.raises(BlockingIOError):
                ours.recv(1 << 16)


@pytest.mark.parametrize("data", [b"", b"\x10", bytes(16), b"\x08\0\0\0" * 8, b"\xff" * 100, b"\x20\0\0\0\x14\0" + bytes(10)])
def test_answers_of_any_bytes_are_survived(data: bytes) -> None:
    for kind, _number, message in wire._messages(data):
        if kind == 20 and len(message) >= 72:
            wire._answer(message)
    wire._answer(bytes(72) + data)


