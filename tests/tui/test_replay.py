"""The replay: its clock, its line, its keys, and what it says to files that are none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gputop.board import Board
from gputop.diagnosis import Engine
from gputop.diagnosis import Ledger
from gputop.frame import Frame
from gputop.frame import Header
from gputop.frame import Mark
from gputop.recording.format import pack_frames
from gputop.recording.format import pack_header
from gputop.recording.reader import Recording
from gputop.recording.writer import Writer
from gputop.stream.file import FileStream
from gputop.stream.hindsight import hindsight
from gputop.stream.pipe import PipeStream
from gputop.stream.playback import MOST_BEHIND_NS
from gputop.stream.playback import SPEEDS
from gputop.stream.playback import Playback
from gputop.stream.playback import moment
from gputop.stream.survey import Episode
from gputop.stream.survey import Survey
from gputop.tui.app import Look
from gputop.tui.draw import scrub
from gputop.tui.replay import ReplayApp
from gputop.tui.screens.help import HelpScreen
from gputop.tui.screens.main import MainScreen
from gputop.tui.screens.moment import MomentScreen
from gputop.tui.screens.replay import ReplayScreen
from gputop.tui.screens.why import WhyScreen
from gputop.tui.view import View
from tests.tui import scene
from tests.tui.test_dashboard import part

SECOND = 1_000_000_000
COUNT = 600
FRAMES = [item for item in scene.frames(COUNT) if isinstance(item, Frame)]
START, END = FRAMES[0].t_ns, FRAMES[-1].t_ns
UNIX_S = scene.UNIX_NS / 1e9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of training, with a marker."""
    path = tmp_path_factory.mktemp("replay") / "minute.gputop"
    writer = Writer(str(path), scene.HEADER)
    FRAMES[300].marks = [Mark(FRAMES[300].t_ns, "epoch 2")]
    for frame in FRAMES:
        writer.add(frame)
    writer.close()
    return path


class Known:
    """A survey that has already ended."""

    def __init__(self, *episodes: Episode) -> None:
        self.episodes = {episode.id: episode for episode in episodes}
        self.until_ns, self.done = END, True
        self.ledgers = [(START + 20 * SECOND, Ledger(200.0, 123.4, {"disk-io": 123.4}))]

    next_start = Survey.next_start
    until = Survey.until


MakeReplay = Callable[..., ReplayApp]


@pytest.fixture
def make_replay(path: Path) -> Iterator[MakeReplay]:
    """``make_replay(Playback(…), *episodes)``."""
    files: list[FileStream] = []

    def make(playback: Playback, *episodes: Episode) -> ReplayApp:
        files.append(FileStream(str(path)))
        return ReplayApp(View(), files[-1], playback, Known(*episodes), Look(remote=True))  # type: ignore[arg-type]

    yield make
    for file in files:
        file.close()


async def until(pilot: Pilot[int], condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.01)


async def stands(pilot: Pilot[int], app: ReplayApp, t_ns: int) -> None:
    """Wait until the moment ``t_ns`` is looked at and drawn."""

    def arrived() -> bool:
        screen = app.screen_stack[0]
        assert isinstance(screen, ReplayScreen)
        drawn_since = screen._arrived[0] == app.player.jumps and not app.player.is_seeking
        return drawn_since and (app.view.at_ns or app.session.now_ns) == t_ns

    await until(pilot, arrived, f"at {t_ns}")
    await pilot.pause()


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
    ("text", "meant"),
    [
        ("23:59:30", "2026-11-20 23:59:30"), ("23:59", None), ("00:05", "2026-11-21 00:05:00"),
        ("2026-11-21 0:05:09", "2026-11-21 00:05:09"),
        ("+90", "2026-11-21 00:00:40"), ("+90s", "2026-11-21 00:00:40"), ("+5m", "2026-11-21 00:04:10"), ("50%", "2026-11-21 00:04:40"),
        ("0%", "2026-11-20 23:59:10"), ("100%", "2026-11-21 00:10:10"), ("00:20", None), ("+2h", None), ("101%", None), ("25:00", None),
        ("noon", None), ("", None), ("+", None), ("9999-99-99 00:00", None), ("+" + "9" * 400, None),
    ],
)  # fmt: skip
def test_moments_in_words(text: str, meant: str | None) -> None:
    """Over midnight; what is outside or no time at all is refused in a line."""
    bounds = local("2026-11-20 23:59:10"), local("2026-11-21 00:10:10")
    if meant is not None:
        assert moment(text, *bounds) == local(meant)
    else:
        with pytest.raises(ValueError, match=r"outside the recording|write a time|no time of day") as error:
            moment(text, *bounds)
        assert "\n" not in str(error.value)


# the line


def bar(**more: object) -> scrub.Bar:
    known: dict[str, object] = {"start_ns": 0, "end_ns": 100, "unix_s": 0.0, "at_ns": 50, "position_ns": 50, "until_ns": 100}
    return scrub.Bar(**(known | more))  # type: ignore[arg-type]


def drawn(one: scrub.Bar, width: int) -> str:
    return "".join(text for text, _ in scrub.line(one, width))


def test_the_line_shows_place_incidents_and_markers() -> None:
    episodes = (Episode(1, 20, 29, "high", "disk-io"), Episode(2, 80, None, "low", "pause"))
    text = drawn(bar(episodes=episodes, marks_ns=(60,), position_ns=70), 120)
    assert text.startswith(" 00:00:00 ")
    assert len(text) == 120
    cells = text[10:110]
    assert (cells[20], cells[21:30], cells[30]) == ("▲", "▪" * 9, "─")
    assert (cells[50], cells[60], cells[70], cells[80:]) == ("●", "◆", "│", "▲" + "▪" * 19)


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
    survey = Survey(str(path))
    deadline = time.monotonic() + 60
    while not survey.done and time.monotonic() < deadline:
        time.sleep(0.01)
    survey.close()
    assert survey.until_ns == END
    assert survey.episodes
    first = min(episode.start_ns for episode in survey.episodes.values())
    assert survey.next_start(START - 1, 1) == first
    assert survey.next_start(first, -1) is None


def test_the_survey_knows_what_was_lost_up_to_any_moment(path: Path) -> None:
    survey = Survey(str(path))
    deadline = time.monotonic() + 60
    while not survey.done and time.monotonic() < deadline:
        assert survey.until(END) is None or survey.until_ns == END
        time.sleep(0.01)
    survey.close()
    engine = Engine()
    with Recording(str(path)) as recording:
        for board in hindsight(engine, Board(header=recording.header), recording):
            told = survey.until(board.t_ns)
            if board.t_ns in dict(survey.ledgers):
                assert told is not None
                assert told[0] == engine.ledger
                assert [one.id for one in told[1]] == [one.id for one in engine.incidents if one.start_ns <= board.t_ns]
    assert survey.until(END) is not None
    assert survey.until(START - 1) is None


# the screen


async def test_it_plays_to_the_end_and_stands_there(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END - 20 * SECOND, speed=64.0))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        await until(pilot, lambda: "|| REPLAY 64×" in part(app, "header")[0], "stopped")
        assert "0:59/0:59" in part(app, "header")[0]
        assert "INPUT-BOUND" in part(app, "verdict")[0]
        assert any("worker 0" in line for line in part(app, "procs"))
        assert "SIMULATED" not in part(app, "header")[0]


async def test_space_plays_from_the_moment_looked_at_and_again_from_the_start(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        await pilot.press("left", "left")
        looked_at = app.view.at_ns
        assert looked_at is not None
        assert looked_at < END
        await pilot.press("space")
        assert app.view.at_ns is None
        await until(pilot, lambda: looked_at <= app.session.now_ns < END and app.player.playback.playing, "plays on from there")
        app.player.playback.speed = 64.0
        await until(pilot, lambda: not app.player.playback.playing, "reached the end")
        await pilot.press("space")
        await until(pilot, lambda: app.session.now_ns < END - 20 * SECOND, "plays from the start")


async def test_jumps_by_time_to_the_edges_and_to_a_clock_time(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 30 * SECOND)
        await pilot.press("right_parenthesis")
        await stands(pilot, app, START + 40 * SECOND)
        await pilot.press("left_parenthesis", "left_parenthesis")
        await stands(pilot, app, START + 20 * SECOND)
        assert app.session.board_at(app.view.at_ns).seq == 200
        await pilot.press("left_curly_bracket")
        await stands(pilot, app, START)
        await pilot.press("dollar_sign")
        await stands(pilot, app, END)
        await pilot.press("at", *"+45s", "enter")
        await stands(pilot, app, START + 45 * SECOND)
        assert time.strftime("%H:%M:%S", time.localtime(UNIX_S + 45)) in part(app, "header")[0]


async def test_a_time_that_is_none_is_asked_for_again(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(80, 24)) as pilot:
        await stands(pilot, app, START)
        await pilot.press("at", *"noon", "enter")
        await pilot.pause()
        assert isinstance(app.screen, MomentScreen)
        assert "write a time" in str(app.screen.query_one("#wrong").visual)
        await pilot.press("escape")
        assert isinstance(app.screen, ReplayScreen)
        assert app.session.now_ns == START


async def test_steps_show_one_frame_after_the_other(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 30 * SECOND)
        for key, seq in (("f", 301), ("f", 302), ("F", 301), ("F", 300), ("F", 299), ("f", 300), ("f", 301), ("f", 302), ("f", 303)):
            await pilot.press(key)
            await stands(pilot, app, FRAMES[seq].t_ns)
            assert app.session.board_at(app.view.at_ns).seq == seq


async def test_incidents_are_jumped_to_wherever_they_are(make_replay: MakeReplay) -> None:
    starts = [START + s * SECOND for s in (12, 40, 55)]
    app = make_replay(Playback(START + 20 * SECOND, playing=False), *(Episode(i, t, None, "high", "disk-io") for i, t in enumerate(starts)))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 20 * SECOND)
        for key, t_ns in (("n", starts[1]), ("n", starts[2]), ("N", starts[1]), ("N", starts[0])):
            await pilot.press(key)
            await stands(pilot, app, t_ns)
        assert app.session.now_ns > starts[1], "what comes behind an incident's start is seen"
        await pilot.press("N")
        assert "no incident" in part(app, "keys")[0]


async def test_why_tells_of_the_whole_recording_after_a_jump(make_replay: MakeReplay) -> None:
    begun, later = Episode(1, START + SECOND, END, "high", "disk-io", "it reads"), Episode(2, END - SECOND, None, "low", "pause", "later")
    app = make_replay(Playback(START + 50 * SECOND, playing=False), begun, later)
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 50 * SECOND)
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen), "why")
        assert isinstance(app.screen, WhyScreen)
        told = shown(app.screen)
        assert "123.4 of 200.0 GPU seconds" in told
        assert "now" in next(line for line in told.splitlines() if "it reads" in line)
        assert "later" not in told


def shown(screen: WhyScreen) -> str:
    return "\n".join("".join(text for text, _ in line) for line in screen.lines())


async def test_looking_back_holds_the_playing(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.session.now_ns > START + 30 * SECOND, "plays")
        await pilot.press("left")
        assert not app.player.playback.playing
        await pilot.click("#lanes", offset=(150, 2))
        await pilot.press("end")
        assert app.view.at_ns is None


async def test_a_longer_time_base_brings_what_lies_before(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END, playing=False))
    app.player.past_ns = 10 * SECOND
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        assert app.session.oldest_ns > START
        await pilot.press("minus")
        await until(pilot, lambda: app.session.oldest_ns == START, "the whole minute")
        assert app.session.now_ns == END


async def test_a_click_on_the_line_goes_there(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START)
        await pilot.click("#scrub", offset=(149, 0))
        await stands(pilot, app, END)


async def test_a_loop_begins_anew(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END - SECOND, speed=16.0, loop=True))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: START < app.session.now_ns < END - 2 * SECOND, "began anew")
        assert "loop" in part(app, "header")[0]
        await pilot.press("a")
        await until(pilot, lambda: not app.player.playback.playing, "stood at the end")
        assert app.session.now_ns == END


async def test_speed_by_keys_and_in_the_header(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(80, 24)) as pilot:
        await stands(pilot, app, START)
        await pilot.press("greater_than_sign", "greater_than_sign")
        await until(pilot, lambda: "4×" in part(app, "header")[0], "faster")
        await pilot.press(*["less_than_sign"] * 9)
        await until(pilot, lambda: "0.25×" in part(app, "header")[0], "slower")


async def test_nothing_of_this_machine_is_touched(make_replay: MakeReplay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = make_replay(Playback(END, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        await pilot.press("down", "K")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)
        assert "signals" in part(app, "keys")[0]
        await pilot.press("r")
        assert "a recording already" in part(app, "keys")[0]
    assert not list(tmp_path.iterdir())


async def test_help_names_the_keys_that_work_here(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START)
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        text = str(app.screen.query_one("#text").visual)
        assert [one.description for one in ReplayScreen.BINDINGS if one.description not in text] == []
        assert "record to a file" not in text


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 24), (300, 80)])
async def test_any_size(make_replay: MakeReplay, size: tuple[int, int]) -> None:
    app = make_replay(Playback(END, playing=False))
    async with app.run_test(size=size) as pilot:
        await stands(pilot, app, END)
        assert part(app, "header")[0].startswith("gputop"[: size[0]])
        if size[1] >= 24:
            assert "●" in part(app, "scrub")[0]
            assert sum("worker" in line for line in part(app, "procs")) == 4


async def test_a_file_that_grows_is_played_on(tmp_path: Path) -> None:
    path = tmp_path / "growing.gputop"
    writer = Writer(str(path), scene.HEADER)
    for frame in FRAMES[:200]:
        writer.add(frame)
    file = FileStream(str(path))
    app = ReplayApp(View(), file, Playback(START + 10 * SECOND, speed=64.0), Known(), Look(remote=True))  # type: ignore[arg-type]
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.session.now_ns == app.player.end_ns, "at its end for now")
        for frame in FRAMES[200:400]:
            writer.add(frame)
        writer.close()
        await until(pilot, lambda: app.session.now_ns == FRAMES[399].t_ns, "played on")
        await until(pilot, lambda: not app.player.playback.playing, "and stood once it was complete")
    file.close()


async def test_silence_in_a_recording_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "gap.gputop"
    writer = Writer(str(path), scene.HEADER)
    for frame in (*FRAMES[:100], *FRAMES[500:]):
        writer.add(frame)
    writer.close()
    file = FileStream(str(path))
    app = ReplayApp(View(), file, Playback(START + 9 * SECOND), Known(), Look(remote=True))  # type: ignore[arg-type]
    began = time.monotonic()
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.session.now_ns >= FRAMES[500].t_ns, "behind the gap")
    assert time.monotonic() - began < 38, "forty seconds of silence were not waited for"
    file.close()


# from a pipe


def test_a_pipe_brings_its_frames_and_says_that_it_ended() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"Welcome to node7\n" + pack_header(scene.HEADER) + pack_frames(FRAMES[:3]))
    stream = PipeStream(reader)
    stream.begin()
    os.write(writer, pack_frames(FRAMES[3:5]))
    os.close(writer)
    items = list(stream)
    assert isinstance(items[0], Header)
    assert [item.seq for item in items[1:]] == [0, 1, 2, 3, 4]
    assert stream.ending() == "its writer ended"
    os.close(reader)


# what is no recording


def gputop(*arguments: str, stdin: bytes | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gputop", "replay", *arguments], input=stdin or b"", capture_output=True, timeout=60, start_new_session=True
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


def bad(kind: str, folder: Path) -> str:
    path = folder / "bad.gputop"
    if kind == "directory":
        path.mkdir()
    elif kind == "no recording":
        path.write_bytes(b"hello " * 1000)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "newer":
        path.write_bytes(pack_header(Header(major=99)))
    elif kind == "no frames":
        path.write_bytes(pack_header(scene.HEADER))
    elif kind == "device":
        return "/dev/zero"
    elif kind == "escapes":
        return str(folder / "\x1b[2Jbad")
    return str(path)


@pytest.mark.parametrize("kind", ["absent", "directory", "no recording", "empty", "newer", "no frames", "device", "escapes"])
def test_what_is_no_recording_is_said_in_a_line(tmp_path: Path, kind: str) -> None:
    code, said = gputop(bad(kind, tmp_path))
    assert code == 1
    assert said.count("\n") == 1
    assert said.startswith("gputop: ")
    assert "\x1b" not in said
    assert "terminal" not in said


@pytest.mark.parametrize(
    "arguments",
    [[], ["x", "--sample"], ["x", "--speed", "65"], ["x", "--speed", "0"], ["x", "--speed", "nan"], ["-", "--at", "+5s"], ["x", "y"]],
)
def test_wrong_usage_is_exit_2(arguments: list[str]) -> None:
    code, said = gputop(*arguments)
    assert (code, said.count("\n")) == (2, 1)


def test_a_time_outside_is_wrong_usage(path: Path) -> None:
    code, said = gputop(str(path), "--at", "+2h")
    assert (code, said.count("\n")) == (2, 1)
    assert "outside the recording" in said


def test_without_a_terminal_it_says_so(path: Path) -> None:
    for code, said in (gputop(str(path)), gputop("-", stdin=path.read_bytes())):
        assert (code, said.count("\n")) == (1, 1)
        assert "terminal" in said
