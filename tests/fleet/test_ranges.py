"""Numbers of other machines: each has a range, and what lies outside costs the row of who sent it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zstandard
from msgspec.inspect import DictType, FloatType, IntType, ListType, StructType, Type, UnionType
from msgspec.structs import replace

from gputop.findings.ranks import RankPace
from gputop.findings.verdict import Culprit, Ledger, Verdict
from gputop.fleet import overview as overview_module
from gputop.fleet.asking import Ask, NodeAnswer, pack_answer, read_answer, read_ask, read_stacks
from gputop.fleet.jobs import Sight
from gputop.fleet.overview import SILENT, Overview
from gputop.fleet.summary import GpuRow, Node, Rank, Summary, read_summary
from gputop.model.ranges import MOST_BYTES, MOST_NS, fitted
from gputop.stacks.nccl import NcclReport, unpack_report
from gputop.tui.draw.fleet_page import Choice, chosen_job, page, why_lines
from tests.fleet import nodes

WILD = (float("nan"), float("inf"), -float("inf"), 1e306, -1e306, -1, 2**63, 2**64 - 1, -(2**63))
WHOLE = Summary(
    gputop="1", host="a", boot_id="b", t_ns=1, unix_ns=10**18, verdict=Verdict(lost_pct=1.0, trainer_pid=7),
    node=Node(8, *([0.5] * 5), 1e6, 2, 1),
    gpus=[GpuRow(0, "H100", "u", 50.0, 40.0, 1 << 30, 1 << 36, 300.0, 700.0, 60.0, 4)], ledger=Ledger(9.0, 4.0, {"unexplained": 4.0}),
    ranks=[Rank(pid=7, job="j", rank=0, size=1, program="train.py", gpus=[0], states={"running": 0.5}, pace=RankPace(0.1, 0.1, 0.2, 0.3),
                steps_per_s=2.0, shares={"unexplained": 0.2}, lost=0.2, culprits=[Culprit(9, "hog", 1.0)], waits_for=7, absent=[3],
                ledger=Ledger(9.0, 4.0, {"unexplained": 4.0}))],
    incidents=[replace(nodes.EPISODE, end_unix_s=1_795e6 + 5, culprits=[Culprit(9, "hog", 1.0)])],
)  # fmt: skip


def numbers(kind: Type, path: str = "") -> Iterator[tuple[str, IntType | FloatType]]:
    """All numbers within a type."""
    if isinstance(kind, (IntType, FloatType)):
        yield path, kind
    elif isinstance(kind, UnionType):
        for one in kind.types:
            yield from numbers(one, path)
    elif isinstance(kind, ListType):
        yield from numbers(kind.item_type, f"{path}[]")
    elif isinstance(kind, DictType):
        yield from numbers(kind.value_type, f"{path}{{}}")
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield from numbers(field.type, f"{path}.{field.name}")


@pytest.mark.parametrize("of", [Summary, NodeAnswer, Ask, NcclReport])
def test_every_number_that_another_machine_sends_has_a_range(of: type) -> None:
    found = dict(numbers(msgspec.inspect.type_info(of)))
    assert found
    assert [path for path, kind in found.items() if kind.ge is None or kind.le is None] == []


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in what msgpack holds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(one, (*path, key))


def payload(value: object) -> bytes:
    return zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(value))


def shown(fleet: Overview) -> list[str]:
    """Everything that a screen over nodes shows, as text."""
    choice = Choice(width=160, height=50)
    lines = [*page(fleet, choice, clock="12:00", own="", note="").lines, *why_lines(fleet, chosen_job(fleet, choice))]
    return ["".join(text for text, _ in line) for line in lines]


def test_any_number_in_any_place_is_refused_or_harmless() -> None:
    read = 0
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(WHOLE))
    assert len(list(places(plain))) > 40
    for path in places(plain):
        for wild in WILD:
            value = msgspec.msgpack.decode(msgspec.msgpack.encode(WHOLE))
            inner = value
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = wild
            try:
                found = read_summary(payload(value))
            except ValueError:
                continue
            read += 1
            fleet = Overview()
            fleet.take([nodes.sight("good", nodes.rank(0)), Sight("evil", found)])
            assert "evil" in "\n".join(shown(fleet))
            assert [row.host for row in fleet.rows if row.does == SILENT] == [], f"{path} {wild}"
            msgspec.json.encode(fleet.rows)
    assert read < 20, "most are refused"


def test_what_this_gputop_says_lies_in_the_ranges() -> None:
    odd = msgspec.structs.replace(
        WHOLE, cpu_ns=-5, rss_bytes=MOST_BYTES * 4, unix_ns=MOST_NS + 1, node=Node(8, 1.0004, -0.001, float("nan")),
        gpus=[GpuRow(0, util_pct=100.5, mem_used_bytes=-1, throttle_mask=2**64 - 1)], ledger=Ledger(float("inf"), -0.001, {"x": -1.0}),
    )  # fmt: skip
    said = fitted(odd)
    assert read_summary(payload(said)) == said
    assert (said.node.cpu, said.node.runnable, said.node.throttled) == (None, None, None)
    assert (said.gpus[0].util_pct, said.gpus[0].mem_used_bytes, said.gpus[0].throttle_mask) == (None, None, None)
    assert (said.cpu_ns, said.rss_bytes, said.unix_ns) == (0, MOST_BYTES, MOST_NS)
    assert said.ledger == Ledger(0.0, 0.0, {"x": 0.0})
    assert said.ranks == odd.ranks
    assert fitted(WHOLE) is WHOLE


def test_questions_answers_and_reports_have_ranges() -> None:
    for line in (b'{"id":1,"ask":"frames","back_s":1e306}', b'{"id":-1,"ask":"save"}', b'{"id":1,"ask":"stacks","pids":[-5]}'):
        with pytest.raises(ValueError, match="no question"):
            read_ask(line)
    block = pack_answer(NodeAnswer(3, unix_s=1e300))
    with pytest.raises(ValueError, match="cannot be read"):
        read_answer(block[28:])
    with pytest.raises(ValueError, match="no report"):
        unpack_report(msgspec.msgpack.encode({"ranks": [{"rank": -2, "size": 2**63, "why": "x"}]}))


@pytest.mark.parametrize("read", [read_answer, read_stacks, unpack_report, read_ask])
def test_what_nests_a_thousand_deep_is_refused_where_it_is_read(read: Callable[[bytes], object]) -> None:
    """In a field that nobody asked for, which a decoder passes over."""
    data = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    if read is read_stacks:
        data = b"\x91" + data
    if read is read_ask:
        data = b'{"id": 1, "ask": "save", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(ValueError, match=r"(no question|no report|cannot be read).*recursion"):
        read(data)


# a bug of ours that one node's numbers meet


def evil(host: str) -> Sight:
    return nodes.sight(host, nodes.rank(0, pid=666, job=f"job of {host}"))


def test_a_node_that_cannot_be_joined_costs_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = overview_module.find_jobs

    def find_jobs(sights: list[Sight], *rest: Any) -> Any:
        if any(rank.pid == 666 for sight in sights if sight.summary for rank in sight.summary.ranks):
            raise OverflowError("\x1b[2Jint too large")
        return real(sights, *rest)

    monkeypatch.setattr(overview_module, "find_jobs", find_jobs)
    fleet = Overview()
    sights = [evil("bad1"), *nodes.fleet(late=3), evil("bad2"), nodes.sight("alone", nodes.rank(0, job=""))]
    for _ in range(3):
        fleet.take(sights)
        fleet.look_again(sights)
    assert [row.host for row in fleet.rows if row.does == SILENT] == ["bad1", "bad2"]
    assert [row.host for row in fleet.rows] == [sight.host for sight in sights]
    assert fleet.jobs[0].late[0].number == 3, "the others are judged as without them"
    assert all("OverflowError: ·[2Jint too large" in row.says for row in fleet.rows if row.does == SILENT)
    assert sum("OverflowError" in line for line in shown(fleet)) == 2
    monkeypatch.undo()
    fleet._faults.clear()
    fleet.take(sights)
    assert fleet.silent == 0, "it is taken in again later"


def test_a_node_that_cannot_be_drawn_costs_its_row() -> None:
    def draw(fleet: Overview) -> list[str]:
        assert all(row.worst is None or row.worst.rank.pid != 666 for row in fleet.rows)
        return shown(fleet)

    fleet = Overview()
    sights = [*nodes.fleet(), *(evil(f"bad{i}") for i in range(3)), *(nodes.sight(f"n{i}", nodes.rank(0, job="")) for i in range(40))]
    fleet.take(sights)
    assert fleet.silent == 0
    lines = fleet.used(draw)
    assert [row.host for row in fleet.rows if row.does == SILENT] == ["bad0", "bad1", "bad2"]
    assert any("bad1" in line and "it cannot be shown" in line for line in lines)
    assert len(fleet.jobs) == 41


def test_a_bug_that_no_node_is_the_cause_of_is_no_nodes_fault() -> None:
    fleet = Overview()
    fleet.take(nodes.fleet())

    def broken(_: Overview) -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        fleet.used(broken)
    assert fleet.silent == 0


def test_books_that_fail_cost_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Overview()
    sights = [evil("bad"), *nodes.fleet()]
    fleet.take(sights)
    monkeypatch.setattr(overview_module.Books, "note", noted(overview_module.Books.note))
    fleet.take(sights)
    fleet.take(sights)
    assert [row.host for row in fleet.rows if row.does == SILENT] == ["bad"]


def noted(real: Any) -> Any:
    def note(self: Any, jobs: Any) -> None:
        if any(member.rank.pid == 666 for job in jobs for member in job.members):
            raise ZeroDivisionError
        real(self, jobs)

    return note
