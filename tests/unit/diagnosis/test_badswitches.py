"""Errors of the driver in the kernel's log: SXids of NVSwitches as incidents, and all of them in recordings, SQL and JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.findings.verdict import LINK_ERRORS, Incident
from gputop.model.board import Board
from gputop.model.driverlog import SXID, XID, DriverError
from gputop.model.frame import Frame, Header
from gputop.recording.keyframe import key_frame
from gputop.recording.reader import Recording
from gputop.recording.seconds import merge_second
from gputop.stream.snapshot import take
from gputop.tables.database import Database
from tests.recording.made import START_NS, record
from tests.unit.diagnosis.scene import Scene, training

FATAL = DriverError(SXID, "0000:c1:00", 20034, link=30, fatal=True, text="LTSSM Fault Up")
HARMLESS = DriverError(SXID, "0000:c1:00", 12028, link=32, fatal=False, text="egress non-posted PRIV error")
LOST = DriverError(XID, "0000:3b:00", 79, pid=7, process="python3", text="GPU has fallen off the bus.", old=True)


def came(scene: Scene, *errors: DriverError) -> Scene:
    """The kernel's log has these now."""
    t_ns = scene.board.t_ns
    scene.board.fold(Frame(scene.board.seq + 1, t_ns, driver_errors=[replace(one, t_ns=t_ns, logged_ns=t_ns) for one in errors]))
    return scene


def told(scene: Scene) -> list[Incident]:
    return [one for one in scene.engine.incidents if one.cause == LINK_ERRORS]


def test_a_fatal_error_of_a_switch_lasts() -> None:
    scene = came(training(run=0.3).play(4, 1.0), FATAL).play(120, 1.0)
    [one] = told(scene)
    assert (one.severity, one.gpu, one.end_ns, one.lost_s) == ("high", None, None, 0.0)
    assert one.headline == "link 30 of NVSwitch 0000:c1:00 has a fatal error, SXid 20034: LTSSM Fault Up"
    assert {item.metric: item.value for item in one.evidence}["sxid"] == 20034
    assert scene.engine.verdict.cause == "none"


def test_one_that_the_switch_has_corrected_ends() -> None:
    scene = came(training(run=0.3).play(4, 1.0), HARMLESS).play(30, 1.0)
    assert [(one.severity, one.end_ns) for one in told(scene)] == [("low", None)]
    [one] = told(scene.play(40, 1.0))
    assert one.end_ns is not None
    assert [one.end_ns is None for one in told(came(scene, replace(HARMLESS, times=2)).play(4, 1.0))] == [False, True]


def test_the_worst_is_told_and_the_others_are_counted() -> None:
    [one] = told(came(training(run=0.3).play(4, 1.0), FATAL, HARMLESS).play(4, 1.0))
    assert "SXid 20034" in one.headline
    assert "links with errors beside it: 32" in one.detail
    assert {item.metric: item.value for item in one.evidence}["sxids"] == 2


@pytest.mark.parametrize("error", [replace(FATAL, old=True), LOST, replace(LOST, old=False)])
def test_what_came_before_and_what_is_a_gpus_is_no_incident_of_a_switch(error: DriverError) -> None:
    assert told(came(training(run=0.3).play(4, 1.0), error).play(4, 1.0)) == []


def frames() -> list[Frame]:
    return [
        Frame(i, START_NS + i * 1_000_000_000, key=not i, driver_errors=[replace(one, t_ns=START_NS + i * 1_000_000_000)] if one else [])
        for i, one in enumerate((LOST, None, FATAL, None, replace(FATAL, times=2)))
    ]


def test_errors_come_through_a_recording_into_sql(tmp_path: Path) -> None:
    path = tmp_path / "a.gputop"
    record(path, frames())
    wanted = "kind, device, number, meaning, link, fatal, process_pid, process, old, times"
    with Recording(str(path)) as recording:
        _, rows = Database(recording).ask(f"SELECT {wanted} FROM driver_error")
        told = [*rows]
    assert told == [
        ("xid", "0000:3b:00", 79, "the GPU has fallen off the bus", None, None, 7, "python3", 1, 1),
        ("sxid", "0000:c1:00", 20034, None, 30, 1, None, "", 0, 1), ("sxid", "0000:c1:00", 20034, None, 30, 1, None, "", 0, 2),
    ]  # fmt: skip


def test_errors_come_through_merged_and_key_frames() -> None:
    merged = merge_second(frames())[-1]
    assert [(one.number, one.times) for one in merged.driver_errors] == [(79, 1), (20034, 2)]
    board = Board()
    for frame in frames():
        board.fold(frame)
    assert [(one.number, one.times) for one in key_frame(board, frames()[-1]).driver_errors] == [(79, 1), (20034, 2)]


def test_json_has_them_with_meaning_and_advice() -> None:
    board = Board(header=Header())
    for frame in frames():
        board.fold(frame)
    by_kind = {one.kind: one for one in take(board, board, {}, {}).driver_errors}
    assert (by_kind["sxid"].times, by_kind["sxid"].meaning, by_kind["sxid"].advice) == (2, None, None)
    assert by_kind["xid"].meaning == "the GPU has fallen off the bus"
    assert "reset the GPU" in (by_kind["xid"].advice or "")
