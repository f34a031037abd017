"""Collectives by name in the stream: rates of now, recording and SQL, and as evidence of a slow wire and of a late rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import Verdict
from gputop.findings.ways import of_collective
from gputop.model.board import Board
from gputop.model.collective import SPAN_NS, Collective, CollectiveTracks, collective_now
from gputop.model.frame import Frame
from gputop.recording.keyframe import key_frame
from gputop.recording.reader import Recording
from gputop.recording.seconds import merge_second
from gputop.tables.database import Database
from tests.recording.made import MS, START_NS, record
from tests.unit.diagnosis.causes import straggling
from tests.unit.diagnosis.causes_wire import ranks_on_a_wire, through_the_hosts_memory
from tests.unit.diagnosis.scene import Scene

READ = Collective(7, "0xa", "AllReduce", 1, "DP", 0, 2, 1, "Ring", "LL128", 64_000_000, 10_000, 40_000)
SECOND_NS = 1_000_000_000


def at(second: int, pid: int = 7) -> Collective:
    """Ten a second, of 10 ms and 40 GB/s each; in every second one the rank came last, awaited for 4 ms."""
    return replace(
        READ, pid=pid, t_ns=second * SECOND_NS, times=10 * second, bytes=640_000_000 * second, time_us=100_000 * second,
        bus_bytes=4_000_000_000 * second, compared=10 * second, late=5 * second, awaited_us=20_000 * second,
    )  # fmt: skip


def test_rates_are_of_the_last_seconds() -> None:
    now = collective_now(at(3), at(5))
    assert (now.times, now.mean_us, now.busbw_gb_per_s, now.time_share) == (20, 10_000.0, 40.0, 0.1)
    assert (now.late_share, now.awaited_us, now.missing) == (0.5, 4000.0, {})
    assert collective_now(at(5), replace(at(1), t_ns=at(6).t_ns)).times == 10, "it was counted anew: there is nothing to compare"
    resting = collective_now(at(3), replace(at(3), t_ns=at(4).t_ns))
    assert resting.mean_us is resting.busbw_gb_per_s is None
    assert {"mean_us", "busbw_gb_per_s", "late_share"} <= resting.missing.keys()


def test_words_leave_out_what_is_not_known() -> None:
    told = of_collective(collective_now(at(3), at(5)))
    assert told == "64.0 MB, 10.0 ms, 40.0 GB/s, 10 % of the time; came last in 50 % of them, awaited for 4.0 ms"
    assert of_collective(collective_now(None, Collective(7, "0xa", "AllReduce"))) == ""


def test_a_rank_that_writes_no_more_is_forgotten() -> None:
    tracks = CollectiveTracks()
    for second in (1, 2, 3):
        tracks.push(second * SECOND_NS, {(7, "0xa", "AllReduce"): at(second)})
    [now] = tracks.now()[7]
    assert now.times == 20
    tracks.push(4 * SECOND_NS + SPAN_NS, {(7, "0xa", "AllReduce"): at(3)})
    assert tracks.now() == {}


def frames() -> list[Frame]:
    made = []
    for i in range(31):
        t_ns = START_NS + i * 100 * MS
        read = [replace(at(i // 10 + 1), t_ns=t_ns)] if not i % 10 else []
        made.append(Frame(i, t_ns, key=not i, collectives=read))
    return made


def test_recorded_and_asked_in_sql(tmp_path: Path) -> None:
    record(tmp_path / "named.gputop", frames())
    with Recording(str(tmp_path / "named.gputop")) as recording:
        kept = [one for frame in recording.frames(recording.start_ns, recording.end_ns + 1) for one in frame.collectives]
        assert [one.times for one in kept] == [10, 20, 30, 40]
        assert kept[1] == replace(at(2), t_ns=kept[1].t_ns)
        _, rows = Database(recording).ask("SELECT coll, ranks, size_bytes, times, late, time_s, awaited_s FROM collective")
        told = [*rows]
    assert told[0] == ("AllReduce", 2, 64_000_000, None, None, None, None)
    assert told[1] == ("AllReduce", 2, 64_000_000, 10, 5, pytest.approx(0.1), pytest.approx(0.02))


def test_merged_and_key_frames_have_the_newest() -> None:
    merged = merge_second(frames()[:20])[-1]
    assert [one.times for one in merged.collectives] == [20]
    board = Board()
    for frame in frames():
        board.fold(frame)
    assert [one.times for one in key_frame(board, frames()[-1]).collectives] == [40]
    board.fold(Frame(99, board.t_ns + 1, gone=[7]))
    assert board.collectives == {}


def shown(verdict: Verdict) -> dict[str, float | None]:
    return {one.metric: one.value for one in verdict.evidence}


def with_collectives(scene: Scene, **of_late: float) -> Scene:
    """Rank 1 waits least: what it measures is the wire's own."""
    for pid in (100, 200):
        own = {"time_us": 200_000, "bus_bytes": 2 << 30} | (of_late if pid == 200 else {})
        scene.collectives.append({
            "pid": pid, "comm": "0xa", "coll": "AllReduce", "ranks": 2, "size_bytes": 1 << 26, "times": 10, "compared": 10,
            "algo": "Ring", "proto": "LL128"} | own)  # fmt: skip
    return scene


@pytest.mark.parametrize(
    ("scene", "cause"),
    [(ranks_on_a_wire(0.5, 0.48), "slow-wire"), (through_the_hosts_memory(), "comm-fallback")], ids=["slow-wire", "comm-fallback"],
)  # fmt: skip
def test_a_slow_wire_has_the_collective_its_size_and_bandwidth(scene: Scene, cause: str) -> None:
    verdict = with_collectives(scene, time_us=80_000, bus_bytes=2_000_000_000).play(6).engine.verdict
    assert verdict.cause == cause
    told = shown(verdict)
    assert told["collective_bytes"] == 1 << 26
    assert told["collective_ms"] == pytest.approx(8.0, rel=0.02)
    assert told["collective_busbw_gb_per_s"] == pytest.approx(25.0, rel=0.02)
    assert any("AllReduce" in one.text for one in verdict.evidence)


def test_a_late_rank_is_the_one_that_came_last() -> None:
    verdict = with_collectives(straggling(), late=9.0, awaited_us=90_000).play(6).engine.verdict
    assert verdict.cause == "straggler-rank"
    told = shown(verdict)
    assert told["came_last_pct"] == pytest.approx(90.0, abs=2.0)
    assert told["awaited_ms"] == pytest.approx(10.0, rel=0.05)


def test_without_the_inspector_nothing_is_added() -> None:
    assert not {"collective_ms", "came_last_pct"} & shown(ranks_on_a_wire(0.5, 0.48).play(6).engine.verdict).keys()
