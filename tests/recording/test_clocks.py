"""A clock that is set, and a machine that sleeps, while a stream runs: what is dated by it, live, in files and by several of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputop.model import clocks
from gputop.model.clocks import Clocks
from gputop.model.frame import Frame, Header
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_end
from gputop.recording.parts import open_recording
from gputop.recording.pipe import PipeSink
from gputop.recording.reader import Recording
from gputop.recording.writer import Rotation, Writer
from gputop.stream.following import Following
from gputop.stream.session import Session as Known
from gputop.tables.load import TableLoader
from gputop.tui.feed import Recorder
from tests.recording.made import HEADER, SECOND, START_NS, Session, record

HOUR = 3600 * SECOND
BEGUN = replace(HEADER, boot_id="b", slept=((START_NS, HOUR),))
SET = replace(BEGUN, unix_ns=BEGUN.unix_ns + 2 * HOUR)
WOKE_NS = START_NS + 10 * SECOND
WOKE = replace(BEGUN, slept=(*BEGUN.slept, (WOKE_NS, 9 * HOUR)))


def at(t_ns: int, set_ns: int = 0, slept_ns: int = HOUR) -> Clocks:
    """The clocks at a moment of the stream, the wall clock having been set forward by so much, and the machine having slept so much."""
    return Clocks(t_ns, BEGUN.unix_ns + t_ns - START_NS + set_ns + slept_ns - HOUR, slept_ns)


def test_a_clock_that_was_set_had_been_wrong_before() -> None:
    assert clocks.dated(BEGUN, at(START_NS + 5 * SECOND, 2 * HOUR), START_NS) == SET
    assert SET.unix_ns_of(START_NS + SECOND) == BEGUN.unix_ns_of(START_NS + SECOND) + 2 * HOUR


def test_what_was_before_a_sleep_keeps_its_time() -> None:
    assert clocks.dated(BEGUN, at(WOKE_NS + 1, slept_ns=9 * HOUR), WOKE_NS) == WOKE
    assert WOKE.unix_ns_of(WOKE_NS - 1) == BEGUN.unix_ns_of(WOKE_NS - 1)
    assert WOKE.unix_ns_of(WOKE_NS) == BEGUN.unix_ns_of(WOKE_NS) + 8 * HOUR
    for t_ns in (START_NS - SECOND, START_NS, WOKE_NS - 1, WOKE_NS, WOKE_NS + HOUR):
        assert WOKE.t_ns_of(WOKE.unix_ns_of(t_ns)) == t_ns
    assert WOKE.t_ns_of(WOKE.unix_ns_of(WOKE_NS) - HOUR) == WOKE_NS


def test_what_is_no_jump_is_not_told() -> None:
    now = at(START_NS + HOUR, set_ns=clocks.JUMP_NS - 1)
    assert clocks.dated(BEGUN, now, now.t_ns) is BEGUN


def test_the_clocks_are_of_one_moment() -> None:
    first, second = clocks.read(), clocks.read()
    header = Header(t_ns=first.t_ns, unix_ns=first.unix_ns, slept=((first.t_ns, first.slept_ns),))
    assert 0 <= first.t_ns <= second.t_ns
    assert clocks.dated(header, second, second.t_ns) is header


def streamed(set_at: int, make: Callable[[int], Clocks]) -> bytes:
    """Forty frames as a collector sends them, whose clocks are as ``make`` has them from the frame of that number on."""
    reading, writing = os.pipe()
    frames = list(Session(1, 2).frames(40))
    now = [at(START_NS)]
    sink = PipeSink(writing, BEGUN, lambda: now[0])
    data = b""
    for n, frame in enumerate(frames):
        now[0] = make(frame.t_ns) if n >= set_at else at(frame.t_ns)
        assert sink.send(frame)
        data += os.read(reading, 1 << 16)
    os.close(writing)
    os.close(reading)
    return data


def test_the_collector_tells_of_it_and_rates_go_on() -> None:
    items = Decoder().feed(streamed(20, lambda t_ns: at(t_ns, 2 * HOUR)))
    assert [n for n, item in enumerate(items) if isinstance(item, Header)] == [0, 21]
    assert items[21] == SET
    session = Known()
    for item in items[:21]:
        session.ingest(item)
    board, engine, ticks = session.board, session.engine, session.history.ticks
    at_ns = session.now_ns
    before_s = session.unix_s(at_ns)
    session.ingest(items[21])
    assert (session.board, session.engine, session.history.ticks) == (board, engine, ticks)
    assert session.board is board
    assert session.unix_s(at_ns) == pytest.approx(before_s + 7200)
    assert session.board.header == session.ring.header == session.board_at(at_ns - 1).header == SET


def test_a_stream_that_was_kept_is_dated_by_what_was_known_last(tmp_path: Path) -> None:
    path = tmp_path / "kept.gputop"
    path.write_bytes(streamed(20, lambda t_ns: at(t_ns, 2 * HOUR)) + pack_end(0))
    with Recording(str(path)) as recording:
        assert recording.problem == ""
        assert recording.header == recording.board_at(recording.end_ns).header == SET
        assert len(list(recording.frames())) == 40


def test_the_past_of_a_restarted_collector_keeps_its_sleep() -> None:
    session, other = (
        Known(),
        replace(BEGUN, t_ns=WOKE_NS + HOUR, unix_ns=WOKE.unix_ns_of(WOKE_NS + HOUR), slept=((WOKE_NS + HOUR, 9 * HOUR),)),
    )
    session.ingest(WOKE)
    session.ingest(other)
    assert session.unix_s(START_NS) == pytest.approx(BEGUN.unix_ns / 1e9)
    assert session.unix_s(WOKE_NS + HOUR) == pytest.approx(other.unix_ns / 1e9)


def written(path: Path, close: bool) -> Writer:
    """A recording in the middle of which the clock was set, and which goes on for more than an index."""
    frames = list(Session(1, 3).frames(420, key_every=10))
    writer = record(path, frames[:25], BEGUN, close=False)
    writer.restate(SET)
    for frame in frames[25:]:
        writer.add(frame)
    if close:
        writer.close()
    return writer


@pytest.mark.parametrize("close", [True, False], ids=["whole", "killed"])
def test_a_file_is_dated_by_what_its_recorder_knew_last(tmp_path: Path, close: bool) -> None:
    writer = written(tmp_path / "run.gputop", close)
    with Recording(writer.path) as recording:
        assert recording.header == SET
        assert recording.lost == {}
        assert len(list(recording.frames())) >= 400
        rows = [row for _, batch in TableLoader(recording, {"gpu": ["t_ns", "unix_s"]}).batches() for row in batch]
        assert rows
        assert all(unix_s == pytest.approx(SET.unix_ns_of(t_ns) / 1e9, abs=1e-3) for t_ns, unix_s in rows)
    writer.close()


def test_a_growing_file_is_dated_anew(tmp_path: Path) -> None:
    frames = list(Session(1, 3).frames(60))
    writer = record(tmp_path / "run.gputop", frames[:30], BEGUN, close=False)
    writer.flush()
    with Recording(writer.path) as recording:
        assert recording.header == BEGUN
        writer.restate(SET)
        assert recording.refresh()
        assert recording.header == recording.board_at(recording.end_ns).header == SET
    writer.close()


def test_rotated_files_begin_with_the_clocks_of_then(tmp_path: Path) -> None:
    rotation = Rotation(str(tmp_path / "run.gputop"), BEGUN, 60_000, 0)
    for n, frame in enumerate(Session(1, 4, threads=3).frames(600, interval_ns=300_000_000, key_every=20)):
        if n == 300:
            rotation.restate(WOKE)
        rotation.add(frame)
    rotation.close()
    paths = sorted(map(str, tmp_path.glob("run*.gputop")))
    headers = []
    for path in paths:
        with Recording(path) as part:
            headers.append(part.header)
    assert {header.slept for header in headers} == {BEGUN.slept, WOKE.slept}
    with open_recording(paths) as whole:
        assert whole.header == WOKE


def test_recordings_of_two_collectors_share_what_is_known(tmp_path: Path) -> None:
    early, late = Session(1, 2), Session(1, 2)
    record(tmp_path / "a.gputop", early.frames(20), BEGUN)
    late.t_ns = late_ns = early.t_ns + HOUR
    unix_ns = SET.unix_ns_of(late_ns)
    record(tmp_path / "b.gputop", late.frames(20), replace(BEGUN, t_ns=late_ns, unix_ns=unix_ns, slept=((late_ns, HOUR),)))
    with open_recording([str(tmp_path / "a.gputop"), str(tmp_path / "b.gputop")]) as both:
        assert both.unix_ns_of(START_NS) == SET.unix_ns
        assert both.unix_ns_of(late_ns) == unix_ns


def test_what_the_screen_records_is_dated_too(tmp_path: Path) -> None:
    session, recorder = Known(), Recorder()
    frames = list(Session(1, 2).frames(20))
    for item in (BEGUN, *frames[:10]):
        session.ingest(item)
    recorder.start(str(tmp_path / "r.gputop"), session)
    for item in (SET, *frames[10:]):
        session.ingest(item)
        recorder.take(item)
    recorder.stop()
    with Recording(str(tmp_path / "r.gputop")) as recording:
        assert recording.header == SET
        assert len(list(recording.frames())) == 20


def test_the_diagnosis_goes_on() -> None:
    frames: list[Frame] = list(Session(1, 2).frames(40))
    boards = list(Following().through([BEGUN, *frames[:20], SET, *frames[20:]]))
    assert boards[0] is boards[-1]
    assert boards[-1].header == SET
