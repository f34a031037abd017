"""How long ranks' connections have data on the wire: real sockets, on loopback and in a network namespace of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gputop.model.frame import Frame, ProcSample
from gputop.sources.procfs import wire
from tests.require import require
from tests.sources.children import child
from tests.sources.fake_proc import sample
from tests.sources.test_procfs_real import Live
from tests.sources.test_procfs_real import live as live

PIECE = bytes(1 << 20)
RANK = """
import os, socket, sys, time
rank, pause_s = int(sys.argv[1]), float(sys.argv[2])
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
        receive()
    else:
        receive()
        peer.sendall(piece)
"""


@contextmanager
def ranks(shaping: str, pause_s: float) -> Iterator[list[int]]:
    """Pids of two processes that exchange 256 KiB again and again, in a namespace whose loopback is shaped by ``tc``."""
    start = f"ip link set lo up && {shaping} {{ {sys.executable} -c '{RANK}' 0 0 & exec {sys.executable} -c '{RANK}' 1 {pause_s}; }}"
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
    assert sum(shares[pid] for pid in here) >= 0.7, shares  # they send by turns
    assert max(shares[pid] for pid in late) <= 0.1, shares
    for old, new in pairs:
        assert new.wire_interface == "lo"
        assert (new.wire_sent_bytes or 0) - (old.wire_sent_bytes or 0) >= 1 << 18
        assert (new.wire_received_bytes or 0) - (old.wire_received_bytes or 0) >= 1 << 18
    assert min(found[pid].wire_rtt_us or 0 for pid in here) > max(found[pid].wire_rtt_us or 0 for pid in late)


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


@pytest.mark.parametrize("data", [b"", b"\x10", bytes(16), b"\x08\0\0\0" * 8, b"\xff" * 100, b"\x20\0\0\0\x14\0" + bytes(10)])
def test_answers_of_any_bytes_are_survived(data: bytes) -> None:
    for kind, message in wire._messages(data):
        if kind == 20 and len(message) >= 72:
            wire._answer(message)
    wire._answer(bytes(72) + data)


