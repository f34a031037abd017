"""Nodes that send more than anybody asked for: they cost their own rows, bounded memory and a bounded share of a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gputop.fleet import link as link_module
from gputop.fleet import links as links_module
from gputop.fleet.asking import MOST_ANSWER_BYTES
from gputop.fleet.link import DOWN, UP
from gputop.model.frame import Frame, Header, ProcSample
from gputop.recording import budget as budget_module
from gputop.recording.budget import BURST_FRAMES, BURST_S, Budget
from gputop.recording.chunks import Decoder, pack_alone
from gputop.recording.format import FLAG_KEY, KIND_END, pack, pack_end, pack_frames, pack_header
from gputop.stream.child import MOST_ITEMS, ChildStream, PipeStream
from gputop.system.errors import UserError
from tests.fleet.fakes import SPEAK, FakeSsh, Open, link, ssh, wait_for
from tests.recording import made
from tests.streams import items_of
from tests.wait import until

assert link  # a fixture
assert ssh
FLOOD = """
import sys
from gputop.model.frame import Frame, Header, ProcSample
from gputop.recording.format import pack_frames, pack_header
out, procs = sys.stdout.buffer, int(sys.argv[1])
out.write(pack_header(Header(host="old", t_ns=1, unix_ns=10**18)))
def frame(i):
    t = i * 100_000_000
    return Frame(i, t, key=i == 1, procs=[ProcSample(p, 1, t, "R", t, 0, 1 << 20, 1) for p in range(1, procs + 1)])
frames = b"".join(pack_frames([frame(i)]) for i in range(1, 31))
while True:
    out.write(frames)
"""
REFUSES = 'case "$*" in *--summary*) echo "gputop: error: unrecognized arguments: --summary" >&2; exit 2;; esac'


def bomb(frames: int = 30, procs: int = 2000) -> bytes:
    """A small block that inflates to megabytes, and to many more of objects."""
    t = made.START_NS
    sample = [ProcSample(100 + i, 1, t, "R", 0, 0, 1 << 20, 1) for i in range(procs)]
    plain = msgspec.msgpack.encode([Frame(i, t + i, key=i == 0, procs=sample) for i in range(frames)])
    block = pack_alone(plain, FLAG_KEY, t)
    assert len(plain) > 50 * len(block)
    return block


def peak_bytes(work: Callable[[], object]) -> int:
    """Bytes that were held at once while it went on."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def drained(decoder: Decoder) -> int:
    """How many items it gives; none is kept."""
    count = 0
    while (items := decoder.next()) is not None:
        count += len(items)
    return count


def test_a_block_that_nobody_wants_is_passed_over_by_its_head() -> None:
    stream = pack_header(made.HEADER) + bomb() * 200
    kinds: list[int] = []
    decoder = Decoder(wants=lambda head: kinds.append(head.kind) or False)

    def feed() -> None:
        for at in range(0, len(stream), 5000):
            decoder.push(stream[at : at + 5000])
            drained(decoder)

    began_s = time.process_time()
    assert peak_bytes(feed) < 1 << 20
    assert time.process_time() - began_s < 2.0
    assert (len(kinds), decoder.lost_bytes, decoder.header) == (200, 0, made.HEADER)
    decoder.push(pack_end(5))
    drained(decoder)
    assert decoder.ended


def test_a_large_block_that_nobody_wants_is_not_kept_while_it_comes() -> None:
    decoder = Decoder(wants=lambda _: False)
    decoder.push(pack_header(made.HEADER))
    block = pack(2, bytes(8 << 20))

    def feed() -> None:
        for at in range(0, len(block), 1 << 16):
            decoder.push(block[at : at + (1 << 16)])
            drained(decoder)

    assert peak_bytes(feed) < 1 << 20
    decoder.push(pack(KIND_END, b""))
    drained(decoder)
    assert (decoder.ended, decoder.lost_bytes) == (True, 0)


def test_blocks_are_opened_one_at_a_time() -> None:
    block = bomb(10, 400)
    one = Decoder()
    one.push(pack_header(made.HEADER) + block)
    alone = peak_bytes(lambda: drained(one))
    many = Decoder()
    many.push(pack_header(made.HEADER) + block * 60)
    assert peak_bytes(lambda: drained(many)) < 3 * alone


def test_what_is_refused_lends_the_blocks_behind_it_nothing() -> None:
    decoder = Decoder(most_bytes=MOST_ANSWER_BYTES)
    huge = msgspec.msgpack.encode([Frame(1, made.START_NS, key=True)]) + bytes(5 << 20)
    decoder.push(pack_header(made.HEADER) + pack_alone(huge, FLAG_KEY, made.START_NS) * 400)
    assert peak_bytes(lambda: drained(decoder)) < 4 << 20
    assert decoder.lost_bytes > 0


def test_a_budget_paces_what_costs_too_much_and_ends_what_comes_too_often() -> None:
    now = [100.0]
    budget = Budget(0.25, lambda: now[0])
    assert budget.rest_s == 0.0
    budget.spend(BURST_S)
    assert (budget.rest_s, budget.over_s) == (0.0, 0.0)
    budget.spend(1.0)
    assert budget.rest_s == pytest.approx(4.0)
    for _ in range(20):  # it takes all that it may
        now[0] += 4.0
        budget.spend(1.0)
    assert budget.over_s == pytest.approx(80.0)
    now[0] += 60.0
    assert (budget.rest_s, budget.over_s) == (0.0, 0.0)
    budget.begin(100_000_000)
    budget.count(BURST_FRAMES)
    now[0] += 10.0
    budget.count(200)  # twice its pace
    with pytest.raises(UserError, match="more than one frame each 100 ms"):
        budget.count(1)


@pytest.mark.parametrize("procs", [0, 5000])
def test_an_old_node_that_floods_ends_with_the_reason_and_costs_no_other(
    procs: int, ssh: FakeSsh, link: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    if procs:
        monkeypatch.setattr(budget_module, "BURST_S", 0.1)
        for module in (link_module, links_module):
            monkeypatch.setattr(module, "LINK_SHARE", 0.02)  # also a busy machine gives it more
    else:
        monkeypatch.setattr(budget_module, "BURST_FRAMES", 200)
    monkeypatch.setattr(links_module, "MOST_OVER_S", 3.0)
    (ssh.folder / "flood.py").write_text(FLOOD)
    ssh.says("floods", f'{REFUSES}; exec {sys.executable} "$D/flood.py" {procs}')
    ssh.says("good")
    links = link("good", "floods")
    wait_for(links, "good", lambda node: node.state == UP)
    ages = []

    def is_told() -> bool:
        states = links.poll()
        ages.append(states["good"].age_s or 0.0)
        return states["floods"].state == DOWN

    until(is_told)
    assert ("takes more than 2% of a CPU" if procs else "more than one frame each 100 ms") in links.poll()["floods"].reason
    assert sorted(ages)[len(ages) // 2] < 2.0, "the other is read meanwhile"
    assert links.poll()["good"].state == UP


def test_a_node_that_floods_frames_beside_its_summaries_is_read_and_its_frames_are_not(ssh: FakeSsh, link: Open) -> None:
    (ssh.folder / "bomb").write_bytes(bomb() * 8)
    ssh.says("floods", 'cat "$D/header"; while :; do cat "$D/summary" "$D/bomb"; done')
    ssh.says("good")
    links = link("good", "floods")
    for host in ("good", "floods"):
        wait_for(links, host, lambda node: node.state == UP)
    began_s, cpu_s, before = time.monotonic(), time.process_time(), resident_bytes()
    seen = set[int]()

    def has_gone_on() -> bool:
        states = links.poll()
        seen.add(round((states["floods"].age_s or 0.0) < 1.0))
        return time.monotonic() - began_s > 3.0

    until(has_gone_on)
    assert time.process_time() - cpu_s < 0.5 * (time.monotonic() - began_s)
    assert resident_bytes() - before < 30 << 20
    assert 1 in seen
    assert links.poll()["good"].state == UP


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_frames_that_nobody_has_room_for_are_left_in_the_pipe(ssh: FakeSsh, link: Open) -> None:
    (ssh.folder / "frames").write_bytes(b"".join(pack_frames([Frame(i, i * 1000, key=i == 1)]) for i in range(1, 200)))
    ssh.says("node", f'cat "$D/header" "$D/summary"; read line; cat "$D/frames"; {SPEAK}')
    links = link("node")
    wait_for(links, "node", lambda node: node.state == UP)
    taken: list[Header | Frame] = []
    room = [20]
    links.tap("node", taken.append, lambda: len(taken) < room[0])
    links.ask("node", "frames")
    until(lambda: len(taken) >= 20)
    assert len(taken) < 25
    room[0] = 1 << 20
    until(lambda: len(taken) == 200)
    assert [item.seq for item in taken[1:] if isinstance(item, Frame)] == list(range(1, 200))


def test_a_node_that_closed_its_output_keeps_nobody_waiting(ssh: FakeSsh, link: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "LAST_WORDS_S", 3.0)
    hosts = [f"ends{i}" for i in range(6)]
    for host in hosts:
        ssh.says(host, 'cat "$D/header" "$D/summary"; exec >&-; exec sleep 60')
    ssh.says("good")
    links = link("good", *hosts, fan_out=8)
    wait_for(links, "good", lambda node: node.state == UP)
    ages: list[float] = []

    def all_ended() -> bool:
        states = links.poll()
        ages.append(states["good"].age_s or 0.0)
        return all(states[host].state == DOWN for host in hosts)

    until(all_ended)
    assert max(ages) < 3.0, "it would be six times three seconds"
    assert links.poll()["ends0"].reason == "it has closed its output"


# one machine


def test_a_machine_that_floods_is_handed_out_bit_by_bit_and_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(budget_module, "BURST_FRAMES", 500)
    (tmp_path / "flood.py").write_text(FLOOD)
    stream = ChildStream([sys.executable, str(tmp_path / "flood.py"), "50"], most=1)
    try:
        frames: list[int] = []
        with pytest.raises(UserError, match="more than one frame each 100 ms"):
            frames.extend(1 for _ in items_of(stream))
        assert 500 <= len(frames) < 5000
    finally:
        stream.close()


def test_a_machine_that_sends_what_cannot_be_read_ends_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "header").write_bytes(pack_header(made.HEADER))
    (tmp_path / "bomb").write_bytes(pack_alone(msgspec.msgpack.encode([Frame(1, 1)]) + bytes(15 << 20), FLAG_KEY, 1))
    stream = ChildStream(["sh", "-c", f"cd {tmp_path}; cat header; while cat bomb; do :; done"])
    found: list[Header | Frame] = []
    try:
        with pytest.raises(UserError, match="no stream of gputop"):
            found.extend(items_of(stream))
        assert found == [made.HEADER]
    finally:
        stream.close()


def test_a_bomb_of_a_machine_is_handed_out_in_parts(tmp_path: Path) -> None:
    (tmp_path / "stream").write_bytes(pack_header(made.HEADER) + bomb(30, 200) * 20)
    stream = ChildStream(["sh", "-c", f"cat {tmp_path}/stream; exec sleep 60"])
    found: list[int] = []
    try:
        until(lambda: found.append(len(stream.read(1.0) or [])) or sum(found) >= 601)
        assert sum(found) == 601
        assert max(found) < MOST_ITEMS + 30
        assert not stream.waits
    finally:
        stream.close()


def test_a_flood_at_standard_input_keeps_little_in_memory(tmp_path: Path) -> None:
    block = bomb(10, 400)
    (tmp_path / "header").write_bytes(pack_header(made.HEADER))
    (tmp_path / "block").write_bytes(block)
    flood = ["sh", "-c", "cat header; for i in $(seq 80); do cat block; done"]
    with subprocess.Popen(flood, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stream = PipeStream(process.stdout.fileno())
        frames = [0]

        def read() -> None:
            for item in items_of(stream):
                frames[0] += isinstance(item, Frame)

        one = Decoder()
        one.push(pack_header(made.HEADER) + block)
        alone = peak_bytes(lambda: drained(one))
        assert peak_bytes(read) < 3 * alone
    assert frames[0] == 800
