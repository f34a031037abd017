"""What keys and clicks do on the replay's screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gputop.findings.verdict import CAUSES, Ledger
from gputop.recording.format import KIND_FRAMES, KIND_HEADER, MAGIC, SECONDS
from gputop.recording.parts import open_recording
from gputop.recording.reader import Recording
from gputop.recording.scan import places
from gputop.recording.writer import Writer
from gputop.stream.playback import Playback
from gputop.stream.session import Session
from gputop.stream.survey import IncidentSpan, Survey, survey
from gputop.tui import bindings
from gputop.tui.app import GputopApp
from gputop.tui.bindings import HelpScreen
from gputop.tui.box import MomentScreen
from gputop.tui.dashboard import DashboardScreen
from gputop.tui.draw import duration, time_of_day
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings
from gputop.tui.player import Player
from gputop.tui.replay_screen import ReplayScreen, replay_context
from gputop.tui.why_box import WhyScreen
from gputop.tui.widgets import Scrolled
from tests.recording.made import record
from tests.tui import scene
from tests.tui.minute import END, FRAMES, SECOND, START, UNIX_S
from tests.tui.minute import path as path
from tests.tui.test_dashboard import part
from tests.wait import PATIENCE_S

TROUBLES = str(Path(__file__).parents[1] / "device" / "data" / "story.gputop")
"""A training on an H200 that has three troubles."""


class Known:
    """A survey that has already ended."""

    def __init__(self, *episodes: IncidentSpan) -> None:
        self.episodes = {episode.id: episode for episode in episodes}
        self.until_ns, self.done, self.problem = END, True, ""
        self.ledgers = [(START + 20 * SECOND, Ledger(200.0, 123.4, {"disk-io": 123.4}))]

    until = Survey.until


MakeReplay = Callable[..., GputopApp]


@pytest.fixture
def make_replay(path: Path) -> Iterator[MakeReplay]:
    """``make_replay(Playback(…), *episodes)``."""
    files: list[Recording] = []

    def make(playback: Playback, *episodes: IncidentSpan, path: Path = path) -> GputopApp:
        files.append(open_recording([str(path)]))
        return GputopApp(replay_context(View(), files[-1], playback, Known(*episodes), ScreenSettings(remote=True)))  # type: ignore[arg-type]

    yield make
    for file in files:
        file.close()


def player(app: GputopApp) -> Player:
    """The player of a replay."""
    assert app.context.replay is not None
    return app.context.replay.player


async def until(pilot: Pilot[int], condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        await pilot.pause(0.01)


async def stands(pilot: Pilot[int], app: GputopApp, t_ns: int) -> None:
    """Wait until the moment ``t_ns`` is shown."""

    def arrived() -> bool:
        screen = app.screen_stack[0]
        assert isinstance(screen, ReplayScreen)
        drawn_since = screen.actions._arrived[0] == player(app).jumps and not player(app).is_seeking
        return drawn_since and (app.context.view.at_ns or app.context.session.now_ns) == t_ns

    await until(pilot, arrived, f"at {t_ns}")
    await pilot.pause()


async def test_it_plays_to_the_end_and_stands_there(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END - 20 * SECOND, speed=64.0))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        await until(pilot, lambda: "|| REPLAY 64×" in part(app, "header")[0], "stopped")
        assert "0:59.9/0:59" in part(app, "header")[0]
        assert "INPUT-BOUND" in part(app, "verdict")[0]
        assert any("worker 0" in line for line in part(app, "procs"))
        assert "SIMULATED" not in part(app, "header")[0]


async def test_space_plays_from_the_moment_looked_at_and_again_from_the_start(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        await pilot.press("left", "left")
        looked_at = app.context.view.at_ns
        assert looked_at is not None
        assert looked_at < END
        await pilot.press("space")
        assert app.context.view.at_ns is None
        await until(pilot, lambda: looked_at <= app.context.session.now_ns < END and player(app).playback.playing, "plays on from there")
        player(app).playback.speed = 64.0
        await until(pilot, lambda: not player(app).playback.playing, "reached the end")
        await pilot.press("space")
        await until(pilot, lambda: app.context.session.now_ns < END - 20 * SECOND, "plays from the start")


async def test_jumps_by_time_to_the_edges_and_to_a_clock_time(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 30 * SECOND)
        await pilot.press("right_parenthesis")
        await stands(pilot, app, START + 40 * SECOND)
        await pilot.press("left_parenthesis", "left_parenthesis")
        await stands(pilot, app, START + 20 * SECOND)
        assert app.context.session.board_at(app.context.view.at_ns).seq == 200
        await pilot.press("left_curly_bracket")
        await stands(pilot, app, START)
        await pilot.press("dollar_sign")
        await stands(pilot, app, END)
        await pilot.press("at", *"epoch 2", "enter")
        await stands(pilot, app, FRAMES[300].t_ns)
        await pilot.press("at", *"+45s", "enter")
        await stands(pilot, app, START + 45 * SECOND)
        assert time.strftime("%H:%M:%S", time.localtime(UNIX_S + 45)) in part(app, "header")[0]


async def test_a_time_between_two_frames_is_the_first_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "late.gputop"
    late = [frame for frame in FRAMES if (frame.t_ns - START) % SECOND]
    with_tenths = time.strftime("%H:%M:%S", time.localtime(UNIX_S + 45)) + ".1"
    record(path, late, scene.HEADER)
    file = open_recording([str(path)])
    app = GputopApp(replay_context(View(), file, Playback(START + 30 * SECOND, playing=False), Known(), ScreenSettings(remote=True)))  # type: ignore[arg-type]
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 30 * SECOND + SECOND // 10)
        await pilot.press("at", *time.strftime("%H:%M:%S", time.localtime(UNIX_S + 45)), "enter")
        await stands(pilot, app, START + 45 * SECOND + SECOND // 10)
        assert part(app, "header")[0].rstrip().endswith(with_tenths)
    file.close()


async def test_a_time_that_is_none_is_asked_for_again(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(80, 24)) as pilot:
        await stands(pilot, app, START)
        await pilot.press("at", *"noon", "enter")
        await pilot.pause()
        assert isinstance(app.screen, MomentScreen)
        assert "'noon' is no time" in str(app.screen.query_one("#wrong").visual)
        await pilot.press("escape")
        assert isinstance(app.screen, ReplayScreen)
        assert app.context.session.now_ns == START


async def test_steps_show_one_frame_after_the_other(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 30 * SECOND)
        for key, seq in (("f", 301), ("f", 302), ("F", 301), ("F", 300), ("F", 299), ("f", 300), ("f", 301), ("f", 302), ("f", 303)):
            await pilot.press(key)
            await stands(pilot, app, FRAMES[seq].t_ns)
            assert app.context.session.board_at(app.context.view.at_ns).seq == seq
            assert f" 0:{seq / 10:.1f}/0:59" in part(app, "header")[0], "a step can be seen"


async def test_incidents_are_jumped_to_wherever_they_are(make_replay: MakeReplay) -> None:
    starts = [START + s * SECOND for s in (12, 40, 55)]
    app = make_replay(
        Playback(START + 20 * SECOND, playing=False), *(IncidentSpan(i, t, None, "high", "disk-io") for i, t in enumerate(starts))
    )
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 20 * SECOND)
        for key, t_ns in (("n", starts[1]), ("n", starts[2]), ("N", starts[1]), ("N", starts[0])):
            await pilot.press(key)
            await stands(pilot, app, t_ns)
        assert app.context.session.now_ns > starts[1], "what comes behind an incident's start is seen"
        await pilot.press("N")
        assert "no incident" in part(app, "keys")[0]


async def test_the_screen_says_an_incident_where_it_was_jumped_to(make_replay: MakeReplay) -> None:
    """An incident begins before the diagnosis can know it."""
    episodes = list({episode.id: episode for news in survey([TROUBLES]) for episode in news.episodes}.values())
    assert len(episodes) >= 2
    with Recording(TROUBLES) as recording:
        start_ns = recording.start_ns
    app = make_replay(Playback(start_ns, playing=False), *episodes, path=Path(TROUBLES))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, start_ns)
        for key, episode in (("n", episodes[0]), ("n", episodes[1]), ("N", episodes[0]), ("n", episodes[1])):
            await pilot.press(key)
            await until(pilot, lambda: app.context.view.cursor_ns is not None and not player(app).is_seeking, "arrived")
            await pilot.pause()
            assert episode.start_ns <= (app.context.view.at_ns or 0) <= episode.start_ns + SECOND
            assert episode.cause in part(app, "verdict")[0]
        await pilot.press(*["n"] * (len(episodes) - 1))
        assert "no incident" in part(app, "keys")[0]


async def test_an_incident_that_is_still_looked_for_is_gone_to_once_it_is_found(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 20 * SECOND, playing=False))
    survey = app.context.replay.survey
    survey.done, survey.until_ns = False, START + 25 * SECOND
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 20 * SECOND)
        for key, arrives in (("down", START + 20 * SECOND), (None, START + 40 * SECOND)):
            survey.episodes.clear()
            await pilot.press("n")
            assert "still looking" in part(app, "keys")[0]
            if key:
                await pilot.press(key)  # something else was meant
            survey.episodes[1] = IncidentSpan(1, START + 40 * SECOND, None, "high", "disk-io")
            app._draw_soon(lambda screen: screen.draw_news())
            await pilot.pause()
            await stands(pilot, app, arrives)
        await pilot.press("n")
        survey.done = True
        await until(pilot, lambda: "no incident in that direction" in part(app, "keys")[0], "said when all was looked at")


async def test_what_is_lost_in_the_middle_is_said_once_all_was_looked_at(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 20 * SECOND, playing=False))
    app.context.replay.survey.problem = "missing frames: 12, in 1 place"
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: "missing frames: 12" in part(app, "keys")[0], "said")


async def test_why_tells_of_the_whole_recording_after_a_jump(make_replay: MakeReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "offer_at", lambda *_: None)  # where no fix is offered the line has what was lost
    begun, later = (
        IncidentSpan(1, START + SECOND, END, "high", "disk-io", "it reads"),
        IncidentSpan(2, END - SECOND, None, "low", "pause", "later"),
    )
    app = make_replay(Playback(START + 50 * SECOND, playing=False), begun, later)
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 50 * SECOND)
        await until(pilot, lambda: "123.4 of 200.0 GPU seconds lost so far" in part(app, "verdict")[2], "the same ledger above")
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen), "why")
        assert isinstance(app.screen, WhyScreen)
        told = shown(app.screen)
        assert "123.4 of 200.0 GPU seconds" in told
        whole = f"{time_of_day(app.context.session.unix_s(START + SECOND))}–{time_of_day(app.context.session.unix_s(END))}"
        assert whole in next(line for line in told.splitlines() if "it reads" in line), "and not up to a now that has a loss yet to come"
        assert "later" not in told


async def test_a_box_that_is_opened_before_a_jump_arrives_shows_what_came(make_replay: MakeReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, prepare = threading.Event(), Player._prepare
    monkeypatch.setattr(Player, "_prepare", lambda *given: opened.wait(20) and prepare(*given))
    monkeypatch.setattr(WhyScreen, "REFRESH_S", 0.0)
    app = make_replay(Playback(START + 50 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await pilot.press("e")
        opened.set()
        await until(pilot, lambda: "INPUT-BOUND" in app.screen.query_one(Scrolled).text, "the verdict there")
        assert isinstance(app.screen, WhyScreen)


async def test_every_cause_of_an_incident_stands_apart_from_its_headline(make_replay: MakeReplay) -> None:
    longest = max(CAUSES, key=len)
    app = make_replay(Playback(START + 50 * SECOND, playing=False), IncidentSpan(1, START + SECOND, END, "high", longest, "train.py waits"))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 50 * SECOND)
        await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, WhyScreen), "why")
        assert isinstance(app.screen, WhyScreen)
        assert f"{longest}  train.py waits" in shown(app.screen)


def shown(screen: WhyScreen) -> str:
    return "\n".join("".join(text for text, _ in line) for line in screen.lines())


async def test_looking_back_holds_the_playing(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 30 * SECOND))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.context.session.now_ns > START + 30 * SECOND, "plays")
        await pilot.press("left")
        assert not player(app).playback.playing
        await pilot.click("#lanes", offset=(150, 2))
        await pilot.press("end")
        assert app.context.view.at_ns is None


async def test_a_longer_time_base_brings_what_lies_before(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END, playing=False))
    player(app).past_ns = 10 * SECOND
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END)
        assert app.context.session.oldest_ns > START
        await pilot.press("minus")
        await until(pilot, lambda: app.context.session.oldest_ns == START, "the whole minute")
        assert app.context.session.now_ns == END


async def test_a_click_on_the_line_goes_there(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START)
        await pilot.click("#scrub", offset=(148, 0))
        await stands(pilot, app, END)


async def test_a_click_on_a_key_presses_it_once(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(START + 20 * SECOND, playing=False))
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, START + 20 * SECOND)
        for word, depth in (("10 s", 1), ("stacks", 2)):
            await pilot.click("#keys", offset=(part(app, "keys")[0].index(word), 0))
            await stands(pilot, app, START + 30 * SECOND)
            assert len(app.screen_stack) == depth


async def test_a_loop_begins_anew(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END - SECOND, speed=16.0, loop=True))
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: START < app.context.session.now_ns < END - 2 * SECOND, "began anew")
        assert "loop" in part(app, "header")[0]
        await pilot.press("a")
        await until(pilot, lambda: not player(app).playback.playing, "stood at the end")
        assert app.context.session.now_ns == END


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
        assert isinstance(app.screen, DashboardScreen)
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
        text = app.screen.query_one(Scrolled).text
        assert [one.description for one in bindings.REPLAY if one.description not in text] == []
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


@contextmanager
def growing(path: Path, playback: Playback) -> Iterator[tuple[GputopApp, Callable[[], None]]]:
    """A replay of a file of twenty seconds, and a function that appends twenty more and ends the file."""
    writer = Writer(str(path), scene.HEADER)

    for frame in FRAMES[:200]:
        writer.add(frame)

    def grow() -> None:
        for frame in FRAMES[200:400]:
            writer.add(frame)
        writer.close()

    file = open_recording([str(path)])
    yield GputopApp(replay_context(View(), file, playback, Known(), ScreenSettings(remote=True))), grow  # type: ignore[arg-type]
    file.close()


async def test_a_file_that_grows_is_played_on(tmp_path: Path) -> None:
    with growing(tmp_path / "growing.gputop", Playback(START + 10 * SECOND, speed=64.0)) as (app, grow):
        async with app.run_test(size=(160, 48)) as pilot:
            await until(pilot, lambda: app.context.session.now_ns == player(app).end_ns, "at its end for now")
            grow()
            await until(pilot, lambda: app.context.session.now_ns == FRAMES[399].t_ns, "played on")
            await until(pilot, lambda: not player(app).playback.playing, "and stood once it was complete")


async def test_the_end_of_a_file_that_grows_is_where_it_is_now(tmp_path: Path) -> None:
    with growing(tmp_path / "growing.gputop", Playback(START + 5 * SECOND, playing=False)) as (app, grow):
        async with app.run_test(size=(160, 48)) as pilot:
            await stands(pilot, app, START + 5 * SECOND)
            grow()
            await until(pilot, lambda: player(app).end_ns == FRAMES[399].t_ns, "it is seen to have grown")
            await until(pilot, lambda: f"/{duration(39.9)}" in part(app, "header")[0], "and said")
            await pilot.press("$")
            await stands(pilot, app, FRAMES[399].t_ns)
            assert not player(app).playback.playing


async def test_silence_in_a_recording_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "gap.gputop"
    record(path, (*FRAMES[:100], *FRAMES[500:]), scene.HEADER)
    file = open_recording([str(path)])
    app = GputopApp(replay_context(View(), file, Playback(START + 9 * SECOND), Known(), ScreenSettings(remote=True)))  # type: ignore[arg-type]
    began = time.monotonic()
    async with app.run_test(size=(160, 48)) as pilot:
        await until(pilot, lambda: app.context.session.now_ns >= FRAMES[500].t_ns, "behind the gap")
    assert time.monotonic() - began < 38, "forty seconds of silence were not waited for"
    file.close()


async def test_the_users_keys_are_those_of_a_replay_too(make_replay: MakeReplay) -> None:
    app = make_replay(Playback(END - 20 * SECOND, playing=False))
    assert app.use_keys({"faster": "space"}) == "space would be the key of both pause and faster: give one of them another"
    assert app.use_keys({"pause": "d", "record": "ctrl+r", "faster": "ctrl+f"}) == ""
    async with app.run_test(size=(160, 48)) as pilot:
        await stands(pilot, app, END - 20 * SECOND)
        await pilot.press("d", "ctrl+f")
        await until(pilot, lambda: player(app).playback.playing and "REPLAY 2×" in part(app, "header")[0], "playing")


async def test_the_header_says_where_only_seconds_are_left(make_replay: MakeReplay, tmp_path: Path, path: Path) -> None:
    """As where old ticks were dropped: the first 30 s have seconds alone."""
    kept = tmp_path / "kept.gputop"
    data = path.read_bytes()
    with Recording(str(path)) as recording:
        middle_ns = recording.chunks()[3].t_ns
    with path.open("rb") as file:
        blocks = list(places(file.fileno(), len(MAGIC), len(data)))
    left = [
        data[one.offset : one.end] for one in blocks
        if one.head.kind == KIND_HEADER or (one.head.kind == KIND_FRAMES and (one.head.tier == SECONDS or one.head.t_ns >= middle_ns))
    ]  # fmt: skip
    kept.write_bytes(MAGIC + b"".join(left))
    app = make_replay(Playback(START + 5 * SECOND, speed=8.0), path=kept)
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: "REPLAY 8× (1 s)" in part(app, "header")[0], "by seconds")
        await until(pilot, lambda: "REPLAY 8× 0:" in part(app, "header")[0], "by ticks")
