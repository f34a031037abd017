"""The parts of a replay: playback, bar, survey of incidents, a stream from a pipe."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gputop.model.frame import Header
from gputop.recording.format import pack_end, pack_frames, pack_header
from gputop.recording.reader import Recording
from gputop.stream.child import PipeStream
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.playback import MOST_BEHIND_NS, SPEEDS, Playback
from gputop.stream.session import Session
from gputop.stream.survey import IncidentSpan, Survey
from gputop.tui.draw import duration, edges, time_of_day
from gputop.tui.draw.edges import header_lines
from gputop.tui.draw.view import Axis, View, axis_line
from tests.streams import items_of
from tests.tui import scene
from tests.tui.minute import END, FRAMES, SECOND, START
from tests.tui.minute import path as path
from tests.wait import PATIENCE_S, until

# the clock


def test_the_position_runs_with_the_wall_clock_and_stops_at_the_end() -> None:
    playback = Playback(100 * SECOND, speed=2.0)
    assert playback.due(5 * SECOND, 200 * SECOND) == 100 * SECOND
    assert playback.due(5 * SECOND + SECOND // 10, 200 * SECOND) == 100 * SECOND + SECOND // 5
    playback.playing = False
    assert playback.due(99 * SECOND, 200 * SECOND) == 100 * SECOND + SECOND // 5
    playback.playing = True
    assert playback.due(100 * SECOND, 200 * SECOND) == 100 * SECOND + SECOND // 5, "the pause does not count"
    assert playback.due(100 * SECOND + SECOND // 10, 100 * SECOND + SECOND // 4) == 100 * SECOND + SECOND // 4


def test_who_cannot_keep_up_plays_slower_and_says_so() -> None:
    playback, now = Playback(0, speed=64.0), SECOND
    for _ in range(12):
        playback.due(now, 1 << 60)
        now += SECOND
    assert playback.position_ns == 11 * 64 * MOST_BEHIND_NS
    assert playback.pace == pytest.approx(16.0)


def test_speeds_go_from_a_quarter_to_64() -> None:
    playback = Playback(0, speed=3.0)
    playback.step_speed(1)
    assert playback.speed == 4.0
    playback.speed = 3.0
    playback.step_speed(-1)
    assert playback.speed == 2.0
    for steps, last in ((1, 64.0), (-1, 0.25)):
        for _ in SPEEDS:
            playback.step_speed(steps)
        assert playback.speed == last


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))


@pytest.mark.parametrize(
    ("seconds", "shown", "still"),
    [
        (70.9999999, "1:11", "1:11.0"),
        (70.93, "1:10", "1:10.9"),
        (0.0, "0:00", "0:00.0"),
        (3661.26, "1:01:01", "1:01:01.3"),
        (-1.0, "0:00", "0:00.0"),
    ],
)
def test_times_are_rounded_to_the_frame_that_is_meant(seconds: float, shown: str, still: str) -> None:
    assert duration(seconds) == shown
    assert duration(seconds, tenths=True) == still
    if seconds >= 0:
        at = local("2026-11-20 00:00:00") + seconds
        assert time_of_day(at)[-2:] == shown[-2:]
        assert time_of_day(at, tenths=True)[-4:] == still[-4:]


def test_header_ruler_and_bar_tell_one_time() -> None:
    at = local("2026-11-20 14:03:06") + 0.96
    ruler = axis_line(Axis(SECOND, 100, 60), at, "")
    ends = edges.scrub_line(edges.Bar(0, 10 * SECOND, (at, at + 10), 0, 0, 0), 80)
    assert time_of_day(at) == "14:03:07"
    assert ruler[-1][0].split()[-1] == "14:03:07"
    assert ends[0][0].strip() == "14:03:07"


def test_before_the_first_frame_there_is_no_time() -> None:
    session = Session()
    session.ingest(scene.HEADER)
    (line,) = header_lines(session, View(), ("starting", "dim"), "")
    assert "".join(text for text, _ in line).rstrip().endswith("starting")


def test_the_header_counts_a_gpu_that_was_lost_before_it_said_its_name() -> None:
    session = scene.session()
    del session.board.gpus[1].values["name"]
    (line,) = header_lines(session, View(width=200), ("LIVE", "dim"), "")
    assert "node7 · 1× H200 · 1× unknown GPU · " in "".join(text for text, _ in line)


# the line


def bar(**more: object) -> edges.Bar:
    known: dict[str, object] = {"start_ns": 0, "end_ns": 100, "unix_s": (0.0, 0.0), "at_ns": 50, "position_ns": 50, "until_ns": 100}
    return edges.Bar(**(known | more))  # type: ignore[arg-type]


def drawn(one: edges.Bar, width: int) -> str:
    return "".join(text for text, _ in edges.scrub_line(one, width))


def test_the_line_shows_place_incidents_and_markers() -> None:
    episodes = (IncidentSpan(1, 20, 29, "high", "disk-io"), IncidentSpan(2, 80, None, "low", "pause"))
    text = drawn(bar(episodes=episodes, marks_ns=(60,), position_ns=70), 120)
    assert text.startswith(" 00:00:00 ")
    assert len(text) == 120
    cells = text[10:110]
    assert (cells[20], cells[21:30], cells[30]) == ("▲", "━" * 9, "─")
    assert (cells[50], cells[60], cells[70], cells[80:]) == ("●", "◆", "│", "▲" + "━" * 19)


def test_what_was_not_looked_at_yet_is_not_called_quiet() -> None:
    cells = drawn(bar(until_ns=40), 120)[10:110]
    assert set(cells[:40]) == {"─"}
    assert set(cells[40:]) == {"·", "●"}


@pytest.mark.parametrize("width", [1, 5, 39, 40, 80, 300])
def test_the_line_fits_any_width_and_a_click_finds_the_moment(width: int) -> None:
    one = bar(start_ns=1000, end_ns=2000, at_ns=1000, position_ns=1000, until_ns=2000)
    text = drawn(one, width)
    assert len(text) == width
    first = text.index("●")
    assert one.time_at(first, width) == 1000
    assert one.time_at(-1, width) is None


def test_a_recording_of_one_frame_has_a_line() -> None:
    assert "●" in drawn(bar(start_ns=7, end_ns=7, at_ns=7, position_ns=7, until_ns=7), 80)


# incidents


def test_the_survey_finds_the_incidents_of_the_whole_file(path: Path) -> None:
    survey = Survey([str(path)])
    deadline = time.monotonic() + PATIENCE_S
    while not survey.done and time.monotonic() < deadline:
        time.sleep(0.01)
    survey.close()
    assert survey.until_ns == END
    assert survey.episodes


def test_the_survey_tells_what_of_the_recording_is_lost(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    (tmp_path / "a.gputop").write_bytes(data[: len(data) * 2 // 3])
    survey = Survey([str(tmp_path / "a.gputop")])
    until(lambda: survey.done)
    survey.close()
    assert "cut short" in survey.problem


def test_the_survey_knows_what_was_lost_up_to_any_moment(path: Path) -> None:
    survey = Survey([str(path)])
    deadline = time.monotonic() + PATIENCE_S
    while not survey.done and time.monotonic() < deadline:
        assert survey.until(END) is None or survey.until_ns == END
        time.sleep(0.01)
    survey.close()
    following = Following()
    engine = following.engine
    with Recording(str(path)) as recording:
        for board in judged(following, recording, recording.start_ns, recording.end_ns + 1):
            told = survey.until(board.t_ns)
            if board.t_ns in dict(survey.ledgers) and board.t_ns < END:
                assert told is not None
                assert told[0] == engine.ledger
                assert [one.id for one in told[1]] == [one.id for one in engine.incidents if one.start_ns <= board.t_ns]
    assert survey.until(START - 1) is None
    whole, explained = survey.until(END), engine.explain()
    assert whole is not None
    assert [one.headline for one in whole[1]] == [one.headline for one in explained.incidents]
    assert whole[0].gpu_lost_s == pytest.approx(explained.ledger.gpu_lost_s, abs=0.001)


# from a pipe


@pytest.mark.parametrize(("last", "said"), [(pack_end(0), "its writer ended"), (b"", "it broke off: its writer did not end it")])
def test_a_pipe_brings_its_frames_and_says_whether_it_ended(last: bytes, said: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"Welcome to node7\n" + pack_header(scene.HEADER) + pack_frames(FRAMES[:3]))
    stream = PipeStream(reader)
    stream.begin()
    os.write(writer, pack_frames(FRAMES[3:5]) + last)
    os.close(writer)
    items = list(items_of(stream))
    assert isinstance(items[0], Header)
    assert [item.seq for item in items[1:]] == [0, 1, 2, 3, 4]
    assert stream.ending() == said
    os.close(reader)
