"""The screen over many nodes, over hand-made summaries: what it shows, and what its keys do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputop.findings import message
from gputop.findings.verdict import Evidence, Fix, Ledger, PathStep
from gputop.fleet import document
from gputop.fleet.asking import NodeAnswer
from gputop.fleet.jobs import Sight
from gputop.fleet.link import DOWN, UP, NodeState
from gputop.fleet.overview import Alike, Overview, fold, worst_first
from gputop.fleet.summary import Summary
from gputop.fleet.targets import LEAST_LEFT_S, STARTS_S, RecordingsFolder
from gputop.model.frame import Frame, Header, Stack
from gputop.stacks.nccl import NcclRank, NcclReport, pack_report
from gputop.stream.playback import PlayedClock
from gputop.stream.reach import Target
from gputop.stream.survey import IncidentSpan, Survey
from gputop.system.colour import painted
from gputop.system.errors import UserError
from gputop.system.text import cell_width
from gputop.tui import clipboard, fleet_replay
from gputop.tui import fleet_screen as screens
from gputop.tui.bindings import HelpScreen
from gputop.tui.draw import fleet_page as draw
from gputop.tui.draw import safe_line, time_of_day
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings
from gputop.tui.fleet_boxes import FleetStacks, file_name
from gputop.tui.fleet_node import NodeScreen, NodeStacks
from gputop.tui.fleet_replay import RecordedNodeScreen
from gputop.tui.fleet_screen import FleetApp, FleetScreen, PastScreen
from gputop.tui.widgets import Scrolled
from tests.fleet.nodes import fleet, late_rank, rank, sight
from tests.fleet.test_summary import serving
from tests.tui import scene
from tests.wait import PATIENCE_S

SIZES = [(80, 24), (160, 48), (110, 30), (40, 12), (20, 5), (300, 80)]
TOLD_S = 1_795_000_000.0
SAMPLE = Path(screens.__file__).parent.parent / "data" / "sample.gputop"


class FakeNodes:
    """Links whose nodes say what a test wants."""

    def __init__(self, sights: list[Sight]) -> None:
        self.sights = sights
        self.asked: list[tuple[str, str, list[int], float | None, float]] = []
        self.replies: list[tuple[str, NodeAnswer]] = []
        self.answer: Callable[[str, str, int], list[NodeAnswer]] = lambda _host, _what, _number: []
        self.taps: dict[str, Callable[[Header | Frame], None]] = {}
        self.clocks: list[PlayedClock] = []
        self.closed = False

    def poll(self) -> dict[str, NodeState]:
        return {
            one.host: NodeState(
                Target(one.host),
                DOWN if one.problem else UP,
                one.problem,
                one.since_s,
                one.next_s,
                one.summary,
                one.age_s,
                one.skew_s,
                one.notes,
            )
            for one in self.sights
        }

    def ask(self, host: str, what: str, *, pids: Iterable[int] = (), at_unix_s: float | None = None, back_s: float = 0.0) -> int:
        self.asked.append((host, what, list(pids), at_unix_s, back_s))
        self.replies += [(host, one) for one in self.answer(host, what, len(self.asked))]
        return len(self.asked)

    def answers(self) -> list[tuple[str, NodeAnswer]]:
        found, self.replies = self.replies, []
        return found

    def tap(self, host: str, take: Callable[[Header | Frame], None] | None, has_room: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        self.taps.pop(host, None)
        if take is not None:
            self.taps[host] = take

    def play(self, targets: Sequence[Target], clock: PlayedClock) -> None:
        assert all(target.within.startswith(f"{clock.text}:") for target in targets)
        self.clocks.append(clock)

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One moment, and nothing that the screen costs; beside what holds for every screen."""
    monkeypatch.setattr(screens, "time_of_day", lambda *_, **__: "14:03:07")
    monkeypatch.setattr(FleetScreen, "own_cost", lambda _screen: "self 0.6% CPU 41 MB")
    monkeypatch.setattr(screens, "EVERY_S", 3600.0)
    monkeypatch.setattr(draw, "time_of_day", lambda _unix_s: "14:03:00")


def straggling() -> list[Sight]:
    sights = fleet(nodes=8, late=17)
    sights[6] = Sight("node07", problem="Connection timed out", since_s=7.2, next_s=3.6)
    return sights


def made(sights: list[Sight], theme: str = "gputop-dark", ascii_only: bool = False) -> FleetApp:
    """Over what a minute and a half have shown: half of it nobody was late."""
    known = Overview()
    for second in range(90):
        known.take([replace(one, summary=None) if one.problem else one for one in (fleet(nodes=len(sights)) if second < 45 else sights)])
    return FleetApp(FakeNodes(sights), View(ascii_only=ascii_only), ScreenSettings(theme), known)


def page_of(app: FleetApp) -> str:
    screen = app.screen_stack[0]
    assert isinstance(screen, FleetScreen)
    return "\n".join("".join(text for text, _ in line).rstrip() for line in screen.page.lines)


Compare = Callable[..., bool]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_fleet(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(made(straggling()), terminal_size=size)


@pytest.mark.parametrize("keys", ["j", "r", "e", "down down", "question_mark", "o o"])
def test_after_keys(snap_compare: Compare, keys: str) -> None:
    assert snap_compare(made(straggling()), press=keys.split(), terminal_size=(80, 24))


@pytest.mark.parametrize("theme", ["gputop-light", "gputop-colour-blind"])
def test_themes(snap_compare: Compare, theme: str) -> None:
    assert snap_compare(made(straggling(), theme), terminal_size=(80, 24))


def test_ascii(snap_compare: Compare) -> None:
    assert snap_compare(made(straggling(), ascii_only=True), terminal_size=(80, 24))


def test_two_jobs(snap_compare: Compare) -> None:
    sights = fleet(nodes=4, late=17)
    sweep = rank(0, job="", rank=None, size=None, program="sweep.py", pid=77, identity={"user": "bo"}, steps_per_s=7.8)
    assert snap_compare(made([*sights, sight("node05", sweep)]), terminal_size=(160, 48))


# rows


def overview(sights: list[Sight]) -> Overview:
    found = Overview()
    found.take(sights)
    found.take(sights)
    return found


def test_the_late_node_comes_first_and_what_waits_is_overruled() -> None:
    rows = worst_first(overview(straggling()).rows)
    assert [(row.host, row.does, row.says) for row in rows[:3]] == [
        ("node03", "late", "cpu-contention"), ("node07", "silent", "Connection timed out"), ("node01", "waits", "waits for rank 17"),
    ]  # fmt: skip


def test_nodes_alike_are_one_row_where_there_is_no_room() -> None:
    rows = worst_first(overview(fleet(nodes=64, late=17)).rows)
    shown = fold(rows, 10)
    assert len(shown) == 10
    assert isinstance(shown[-1], Alike)
    assert len(shown[-1].rows) == 64 - 9
    assert {row.host for row in rows} == {one.host for one in shown[:-1]} | set(shown[-1].hosts)
    assert fold(rows, 64) == rows


def test_a_row_that_is_alone_of_its_kind_is_never_left_out() -> None:
    shown = fold(worst_first(overview(fleet(nodes=64, late=17)).rows), 3)
    assert shown[0].host == "node03"


def test_a_cell_of_a_lane_keeps_its_content_while_it_moves_also_after_what_is_forgotten() -> None:
    known, before = Overview(), ""
    for second in range(1400):
        known.take(fleet(nodes=1, late=3 if second // 90 % 2 else None))
        page = draw.page(known, draw.Choice(width=100, height=24), clock="c", own="", note="")
        lane = "".join(text for text, _ in page.lines[5])[page.lane_at :]
        assert len(lane) == 100 - page.lane_at
        if second > 700:
            moved = 1 if second % page.lane_s == 0 else 0
            assert lane[: -1 - moved] == before[moved:-1]
        before = lane


# keys


async def told(pilot: Pilot[int], holds: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not holds() and time.monotonic() < end:
        await pilot.pause(0.05)
    assert holds()


async def test_a_straggler_is_told_with_its_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "EVERY_S", 0.3)
    app = FleetApp(FakeNodes(fleet(nodes=8)), View(), ScreenSettings())
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)
    async with app.run_test(size=(80, 24)) as pilot:
        assert "HEALTHY" in page_of(app)
        nodes.sights = straggling()
        await told(pilot, lambda: "STRAGGLER ← cpu-contention   the job loses 60% of its GPUs (as far as seen)" in page_of(app))
        assert "rank 17 (node03 GPU 1) holds 55 others; fluent-bit (903) took 1.4 of 8 CPUs" in page_of(app)
        assert "node07 no answer for 0:07: Connection timed out; again in 4 s" in page_of(app)


async def test_a_filter_finds_nodes_by_words() -> None:
    app = made(straggling())
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"node04", "enter")
        assert "node04" in page_of(app)
        assert "node05" not in page_of(app)
        await pilot.press("escape")
        assert "node05" in page_of(app)


async def test_a_filter_may_be_a_regular_expression() -> None:
    app = made(straggling())

    def hosts() -> list[str]:
        screen = app.screen_stack[0]
        assert isinstance(screen, FleetScreen)
        return sorted(row.host for row in draw.shown_rows(screen.fleet, screen.choice))

    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("slash", *"!^node0[45]$", "enter")
        assert hosts() == ["node04", "node05"]
        await pilot.press("slash", *"![", "enter")
        assert "is no usable regular expression" in page_of(app)
        assert len(hosts()) == 8


async def test_stacks_of_all_ranks_are_taken_in_one_moment_by_each_nodes_clock() -> None:
    sights = fleet(nodes=2, late=3)
    sights[1] = replace(sights[1], skew_s=1.5)
    app = made(sights)
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)

    def answer(_host: str, what: str, number: int) -> list[NodeAnswer]:
        pids = nodes.asked[-1][2]
        if what == "nccl":
            said = NcclReport("2.27.3", 16, 16, [NcclRank(3, 16, "launched 1 of 2 AllReduce")], ["#0-0 (1) MISMATCH"])
            return [NodeAnswer(number, what, data=pack_report(said))]
        stacks = [Stack(pid, pid, 1, [f"{'next loader.py:9' if pid == 1003 else 'all_reduce dist.py:88'}"]) for pid in pids]
        return [NodeAnswer(number, what, data=msgspec.msgpack.encode(stacks))]

    nodes.answer = answer
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("s")
        screen = app.screen
        assert isinstance(screen, FleetStacks)
        await told(pilot, lambda: "15 of 16 trainers: all_reduce" in screen.page.text)
        assert "rank 3 (node01)" in screen.page.text
        assert "NCCL 2.27.3: rank 3 of 16: launched 1 of 2 AllReduce" in screen.page.text
        times = {host: at for host, what, _, at, _ in nodes.asked if what == "stacks"}
        assert times["node01"] is not None
        assert times["node02"] == pytest.approx(times["node01"] - 1.5)
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)


async def test_the_last_ten_minutes_of_every_node_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = made([*fleet(nodes=2), Sight("node03", problem="no route")])
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)
    nodes.answer = lambda host, what, number: (
        [NodeAnswer(number, what, data=b"one", more=True), NodeAnswer(number, what, data=host.encode())] if host == "node01"
        else [NodeAnswer(number, what, "disk full")]
    )  # fmt: skip
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("R")
        await told(pilot, lambda: "saved 1 node" in page_of(app))
        assert "node02: disk full" in page_of(app)
    [saved] = tmp_path.glob("*/*")
    assert (saved.name, saved.read_bytes(), saved.stat().st_mode & 0o777) == ("node01.gputop", b"onenode01", 0o600)
    assert nodes.closed


async def test_enter_opens_the_worst_node_and_escape_comes_back() -> None:
    app = made(straggling())
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)
    async with app.run_test(size=(120, 40)) as pilot:
        await told(pilot, lambda: "STRAGGLER" in page_of(app))
        await pilot.press("enter")
        screen = app.screen
        assert isinstance(screen, NodeScreen)
        await told(pilot, lambda: "node03" in nodes.taps)
        for item in scene.frames(40):
            nodes.taps["node03"](item)
        await told(pilot, lambda: "INPUT-BOUND" in "".join(panel.widget.line_text(0) for panel in screen.drawing.panels))
        assert ("node03", "frames", [], None, 600.0) in nodes.asked
        nodes.answer = lambda _host, what, number: [
            NodeAnswer(number, what, data=msgspec.msgpack.encode([Stack(pid, pid, 1, ["next loader.py:9"]) for pid in nodes.asked[-1][2]]))
        ]
        await pilot.press("s")
        box = app.screen
        assert isinstance(box, NodeStacks)
        await told(pilot, lambda: "loader.py:9" in box.text)
        assert "taken by node03" in box.text
        assert nodes.asked[-1][:2] == ("node03", "stacks")
        await pilot.press("escape")
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)
        await told(pilot, lambda: "node03" not in nodes.taps)
        assert nodes.asked[-1][4] == -1.0


async def test_a_folder_of_recordings_is_gone_through_in_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node01", "node02"):
        (tmp_path / f"{name}.gputop").symlink_to(SAMPLE)
    past, opened = RecordingsFolder(str(tmp_path)), list[FakeNodes]()
    begin_s = past.now_s

    def links(targets: list[Target]) -> FakeNodes:
        assert [target.host for target in targets] == ["node01", "node02"]
        assert targets[0].within == f"{past.clock.text}:{tmp_path}/node01.gputop"
        opened.append(FakeNodes(fleet()))
        return opened[-1]

    monkeypatch.setattr(screens, "Links", links)
    first = FakeNodes(straggling())
    app = FleetApp(first, View(), ScreenSettings(), past=past)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("right_parenthesis")
        assert past.now_s == pytest.approx(begin_s + 10.0, abs=2.0)
        await told(pilot, lambda: first.closed)
        await told(pilot, lambda: "HEALTHY" in page_of(app))
        await pilot.press("right_curly_bracket", "right_curly_bracket")
        last_s = past.now_s
        await pilot.press("right_curly_bracket")
        assert past.now_s == pytest.approx(last_s, abs=2.0), "it ends there"
        await pilot.press("left_curly_bracket", "left_curly_bracket", "left_curly_bracket")
        assert past.now_s == pytest.approx(begin_s, abs=2.0)
    assert all(nodes.closed for nodes in opened[-1:])
    with pytest.raises(UserError, match="holds no recordings"):
        RecordingsFolder(str(tmp_path / "nowhere"))


async def test_all_nodes_of_a_folder_stand_and_run_by_one_clock(past: RecordingsFolder) -> None:
    app = over(past)
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)
    async with app.run_test(size=(110, 30)) as pilot:
        await told(pilot, lambda: "► REPLAY 1×" in page_of(app))
        await pilot.press("space")
        stood_s = past.now_s
        assert (nodes.clocks[-1].speed, nodes.clocks[-1].unix_s) == (0.0, pytest.approx(stood_s))
        assert "|| REPLAY 1×" in page_of(app)
        await pilot.press("greater_than_sign", "greater_than_sign")
        assert (past.now_s, nodes.clocks[-1].speed) == (stood_s, 0.0), "a speed that is chosen while all stand holds from then on"
        await pilot.press("space")
        assert (nodes.clocks[-1].speed, nodes.clocks[-1].unix_s) == (4.0, pytest.approx(stood_s))
        await told(pilot, lambda: past.now_s > stood_s + 1.0)
        assert "► REPLAY 4×" in page_of(app)
        assert app.nodes is nodes, "nobody was started again"
        await pilot.press("a", "question_mark")
        box = app.screen
        assert isinstance(box, HelpScreen)
        assert "play or pause, all nodes" in box.page.text


async def test_the_seconds_on_the_lanes_are_those_of_the_recordings(past: RecordingsFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    app = over(past)
    async with app.run_test(size=(110, 30)) as pilot:
        screen = app.screen
        assert isinstance(screen, PastScreen)
        known = []
        for now_s in (1000.9, 1001.2, 1001.3, 1008.0):
            monkeypatch.setattr(RecordingsFolder, "now_s", now_s)
            screen._is_between = False
            screen.look()
            known.append(screen.fleet.seconds)
        assert [later - known[0] for later in known] == [0, 1, 1, 8]
        assert len(screen.fleet.past["node01"]) == screen.fleet.seconds
        await pilot.pause()


async def test_at_the_end_all_stand_or_begin_again(past: RecordingsFolder) -> None:
    app = over(past)
    nodes = app.nodes
    assert isinstance(nodes, FakeNodes)
    begin_s, end_s = past.span_s
    async with app.run_test(size=(110, 30)) as pilot:
        screen = app.screen
        assert isinstance(screen, PastScreen)
        past.clock = PlayedClock(time.time() - 9.0, end_s - 1.0)
        screen.look()
        assert (past.playback.playing, nodes.clocks[-1].unix_s, nodes.clocks[-1].speed) == (False, end_s, 0.0)
        await pilot.press("space")
        assert (past.playback.playing, past.clock.unix_s, nodes.closed or app.nodes is not nodes) == (True, begin_s, True)
        await pilot.press("a")
        past.clock = PlayedClock(time.time() - 9.0, end_s - 1.0)
        screen.look()
        assert (past.playback.playing, past.clock.unix_s) == (True, begin_s)


# a node that is opened from a recording is a replay


class Judged:
    """A survey that has ended, and found nothing."""

    def __init__(self, _files: Sequence[str]) -> None:
        self.episodes: dict[int, IncidentSpan] = {}
        self.ledgers: list[tuple[int, Ledger]] = []
        self.until_ns, self.done, self.problem = 1 << 62, True, ""
        self.closed = False

    until = Survey.until

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingsFolder:
    """Two machines with the same recording of a minute, played from its middle."""
    for name in ("node01", "node03"):
        (tmp_path / f"{name}.gputop").symlink_to(SAMPLE)
    monkeypatch.setattr(fleet_replay, "Survey", Judged)
    monkeypatch.setattr(screens, "Links", lambda _targets: FakeNodes(fleet(nodes=8, late=17)))
    found = RecordingsFolder(str(tmp_path))
    found.go_to(sum(found.span_s) / 2)
    return found


def over(past: RecordingsFolder) -> FleetApp:
    return FleetApp(FakeNodes(fleet(nodes=8, late=17)), View(), ScreenSettings(), past=past)


async def opened(pilot: Pilot[int]) -> RecordedNodeScreen:
    """The replay that Enter opens, once its moment is loaded and its processes are in the table."""
    await pilot.press("enter")
    screen = pilot.app.screen
    assert isinstance(screen, RecordedNodeScreen)
    assert screen.context.replay is not None
    player = screen.context.replay.player
    await told(pilot, lambda: player.jumps and not player.is_seeking and screen.drawing.table.shown)
    return screen


def moment_s(screen: RecordedNodeScreen) -> float:
    """The moment shown, Unix seconds of the recorded machine."""
    assert screen.context.replay is not None
    return screen.context.replay.unix_s(screen.context.view.at_ns or screen.context.replay.player.at_ns)


@contextmanager
def begins_at(past: RecordingsFolder, unix_s: float) -> Iterator[None]:
    """What is done within starts the players at this moment of the recorded machines."""
    before_s, clock = time.time(), past.clock
    yield
    assert past.clock != clock
    assert past.clock.unix_s == pytest.approx(unix_s, abs=1e-3)
    assert before_s <= past.clock.wall_s - STARTS_S <= time.time()


def header(screen: RecordedNodeScreen) -> str:
    return screen.drawing.panels[0].widget.line_text(0)


async def test_a_node_of_a_folder_opens_as_a_replay_at_the_moment_of_all_nodes(past: RecordingsFolder) -> None:
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        before_s = past.now_s
        screen = await opened(pilot)
        assert screen.context.replay is not None
        begun_ns = screen.context.replay.player._goal_ns
        assert before_s - 1e-3 <= screen.context.replay.unix_s(begun_ns) <= past.now_s
        await told(pilot, lambda: "► REPLAY 1×" in header(screen))
        await told(pilot, lambda: header(screen).endswith(time_of_day(moment_s(screen))))
        await pilot.press("space", "0")
        await told(pilot, lambda: "|| REPLAY 1× 0:00.0/1:01" in header(screen))
        assert header(screen).endswith(time_of_day(past.span_s[0], tenths=True))
        await pilot.press("greater_than_sign")
        await told(pilot, lambda: "|| REPLAY 2×" in header(screen))
        await pilot.press("question_mark")
        box = app.screen
        assert isinstance(box, HelpScreen)
        assert "go back to the nodes" in box.page.text
        assert "play or pause" in box.page.text
        assert "record to a file" not in box.page.text


async def test_going_back_keeps_the_moment_and_closes_the_files(past: RecordingsFolder) -> None:
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        await pilot.press("space", "0")
        await told(pilot, lambda: moment_s(screen) == pytest.approx(past.span_s[0], abs=0.2))
        first = app.nodes
        with begins_at(past, moment_s(screen)):
            await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)
        assert app.nodes is not first
        await told(pilot, lambda: screen._survey.closed)  # type: ignore[attr-defined]
        await told(pilot, lambda: screen._recording._fd == -1)


async def test_going_back_from_a_replay_that_ran_as_all_nodes_did_starts_none_again(
    past: RecordingsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screens, "TOGETHER_S", 25.0)  # a slow machine opens late
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        await opened(pilot)
        first = app.nodes
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)
        assert app.nodes is first


async def test_escape_clears_before_it_goes_back(past: RecordingsFolder) -> None:
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(pilot)
        await pilot.press("down")
        await told(pilot, lambda: screen.context.view.selected is not None)
        await pilot.press("escape")
        assert app.screen is screen
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)


async def test_the_ends_of_a_folder_are_a_key_away(past: RecordingsFolder) -> None:
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        with begins_at(past, past.span_s[0]):
            await pilot.press("0")
        with begins_at(past, past.span_s[1] - LEAST_LEFT_S):
            await pilot.press("dollar_sign")


async def test_a_recording_that_cannot_be_opened_any_more_is_a_note(past: RecordingsFolder, tmp_path: Path) -> None:
    app = over(past)
    async with app.run_test(size=(120, 40)) as pilot:
        (tmp_path / "node03.gputop").unlink()
        await pilot.press("enter")
        assert isinstance(app.screen, FleetScreen)
        assert "node03.gputop" in page_of(app)


def test_an_opened_recording(snap_compare: Compare, past: RecordingsFolder) -> None:
    async def open_at_the_end(pilot: Pilot[int]) -> None:
        screen = await opened(pilot)
        await pilot.press("space", "dollar_sign")
        await told(pilot, lambda: "1:01.9/1:01" in header(screen))
        screen.drawing.redraw()  # all panels once more, now that nothing moves

    assert snap_compare(over(past), terminal_size=(120, 40), run_before=open_at_the_end)


async def test_the_users_keys_are_those_of_the_fleet_and_of_its_nodes(past: RecordingsFolder) -> None:
    app = over(past)
    assert app.use_keys({"jobs": "J", "pause": "P", "clear": "X"}) == ""
    assert app.use_keys({"jobs": "n"}).startswith("n would be the key of both nodes and jobs")
    assert app.use_keys({"loop": "space"}).startswith("space would be the key of both pause and loop")
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("J")
        assert app.screen_stack[0].choice.view == "jobs"  # type: ignore[attr-defined]
        await pilot.press("n")
        screen = await opened(pilot)
        await pilot.press("P")
        await told(pilot, lambda: "|| REPLAY" in header(screen))
        await pilot.press("X")
        assert isinstance(app.screen, FleetScreen)


async def test_a_node_that_does_not_answer_cannot_be_opened() -> None:
    app = made([Sight("node07", problem="Connection timed out", since_s=7.0)])
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("down", "enter")
        assert "node07 does not answer" in page_of(app)
        await pilot.press("s")
        assert "no training on these nodes" in page_of(app)


# bad input


@pytest.mark.parametrize("size", [(20, 3), (21, 4), (30, 7), (80, 8), (129, 30), (1000, 400)])
def test_every_size_has_as_many_lines_as_rows_and_none_wider(size: tuple[int, int]) -> None:
    for sights in (straggling(), [], [Sight("x")], [Sight("y", Summary())], fleet(nodes=64)):
        for view in draw.VIEWS:
            choice = draw.Choice(view=view, width=size[0], height=size[1], pattern="node")
            lines = draw.page(overview(sights), choice, clock="14:03:07", own="self", note="").lines
            assert len(lines) == size[1]


def test_what_hostile_nodes_say_stays_in_its_row() -> None:
    evil = late_rank(0, program="a\x1b[2Jb", why="x\ny\x1b]0;t\x07", size=1 << 60, rank=(1 << 60) - 1, identity={"user": "u\x9b31m"})
    lines = draw.page(overview([sight("node01", evil)]), draw.Choice(width=80, height=24), clock="c", own="", note="").lines
    drawn = ["".join(text for text, _ in safe_line(line)) for line in lines]
    assert not any(char in line for line in drawn for char in "\x1b\n\x07\x9b")


FIX = Fix("Let fluent-bit (903) run only when no other process wants the CPU", "chrt --idle --all-tasks --pid 0 903")
WAY = [PathStep(1017, "train.py rank 17", 0.6, "waits", "worker 2 (833)", True), PathStep(833, "worker 2", 0.7, "runnable", "", True)]


def with_a_fix(sights: list[Sight], host: str = "node03") -> list[Sight]:
    """The node says what to do, and why."""
    evidence = [Evidence("runq_pct", 72.25, "%", "4 of 4 workers wanted a CPU and had none")]
    return [
        replace(one, summary=replace(one.summary, fix=FIX, path=WAY, evidence=evidence)) if one.host == host and one.summary else one
        for one in sights
    ]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_chosen_node_has_its_fix_on_top_and_its_verdict_lanes_way_and_numbers_below(size: tuple[int, int]) -> None:
    known = overview(with_a_fix(straggling()))
    for seconds in (1, 30, 200):
        known.take(with_a_fix(straggling()), seconds)
        lines = draw.page(known, draw.Choice(width=size[0], height=size[1]), clock="14:03:07", own="", note="").lines
        texts = ["".join(text for text, _ in line) for line in lines]
        assert len(lines) == size[1]
        assert size[0] < 80 or max(cell_width(text.rstrip()) for text in texts) <= size[0]
        assert any(text.startswith(" ► node03: chrt --idle") for text in texts) == (size[0] > 40 and size[1] >= 24)
        if size[1] >= 24 and size[0] >= 80:
            work = next(text for text in texts if text.startswith("  GPU work"))
            assert work[draw.chosen.LABEL :].strip(), "the lane is filled"
            assert not work[draw.chosen.LABEL :].startswith("   "), "from its begin"
        if size[1] >= 48:
            assert any("%  4 of 4 workers wanted a CPU" in text for text in texts)
            assert any("72 %" in text for text in texts)
            assert any("way   train.py rank 17 (1017) waits 60 %" in text for text in texts)


def with_a_server() -> list[Sight]:
    """A training, and a node whose neighbours take the CPU of an inference server's tokenizer."""
    return [Sight("node09", serving()), *fleet(nodes=2)]


@pytest.mark.parametrize("size", [(80, 24), (110, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_node_that_serves(snap_compare: Compare, size: tuple[int, int]) -> None:
    assert snap_compare(made(with_a_server()), terminal_size=size)


async def test_row_lower_half_box_and_json_have_the_same_way_of_a_request() -> None:
    """As the node's diagnosis told it, with the mark at the same part; a training has none."""
    app, requests = made(with_a_server()), serving().requests
    assert requests is not None
    wanted = [painted(line, on=False).rstrip() for line in message.requests(requests, 140)]
    assert [line for line in wanted if "►" in line] == [line for line in wanted if "CPU          bowtie2 (900)" in line] != []
    async with app.run_test(size=(140, 48)) as pilot:
        assert "\n".join(wanted) in page_of(app)
        [row] = [line for line in page_of(app).splitlines() if line.startswith("node09 ")]
        assert "0 ► CPU" in row
        await pilot.press("e")
        await pilot.pause()
        box = [line.rstrip() for line in app.screen.query_one(Scrolled).text.splitlines()]
        assert "\n".join(wanted) in "\n".join(box)
        await pilot.press("escape", "down", "down")
        assert "─ node01 ─" in page_of(app)
        assert "  asks  " not in page_of(app)
    told = document.fleet(overview(with_a_server()))
    assert [one.summary.requests for one in told.nodes if one.summary is not None] == [requests, None, None]


async def test_another_node_can_be_chosen_and_c_copies_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    monkeypatch.setattr(clipboard, "copy", lambda _app, text: got.append(text) or "copied")
    app = made(with_a_fix(straggling()))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.pause()
        assert "\n─ node03 ─" in page_of(app)
        await pilot.press("c")
        assert got == [FIX.command]
        assert "for node03" in page_of(app)
        await pilot.press("down", "down", "down")
        chosen = app.screen_stack[0].choice.selected  # type: ignore[attr-defined]
        assert chosen not in ("", "node03")
        assert f"\n─ {chosen} ─" in page_of(app)
        assert "► " not in page_of(app)
        await pilot.press("c")
        assert got == [FIX.command]
        assert "no command to copy" in page_of(app)


async def test_a_folder_has_a_bar_of_time_on_which_keys_and_mouse_go(past: RecordingsFolder) -> None:
    """The nodes are started again once the keys rest, and not for each of them."""
    begin_s, end_s = past.span_s
    app = over(past)
    async with app.run_test(size=(100, 30)) as pilot:
        screen = app.screen_stack[0]
        assert isinstance(screen, PastScreen)
        await told(pilot, lambda: screen.page.bar_at == 28)
        bar = screen.choice.moment
        assert bar is not None
        assert (bar.start_ns, bar.end_ns) == (int(begin_s * 1e9), int(end_s * 1e9))
        went: list[float] = []
        screen._go_to = went.append  # type: ignore[method-assign]
        past.playback.playing = False
        past.turn()
        at_s = past.now_s
        await pilot.press("right", "right", "right", "shift+right", "left")
        assert screen.choice.moment is not None
        assert screen.choice.moment.at_ns > screen.choice.moment.position_ns, "where it will go is shown at once"
        await told(pilot, lambda: went)
        assert went == [pytest.approx(min(end_s, at_s + 12 * (end_s - begin_s) / 80), abs=0.2)]
        await pilot.click(offset=(50, 28))
        await told(pilot, lambda: len(went) == 2)
        assert went[1] == pytest.approx((begin_s + end_s) / 2, abs=(end_s - begin_s) / 50)


@pytest.mark.parametrize(("host", "name"), [("ana@node7", "ana@node7"), ("../../x", "_.._x"), ("[::1]:22", "___1__22"), ("..", "node")])
def test_files_are_named_like_their_hosts_and_stay_in_their_folder(host: str, name: str) -> None:
    assert file_name(host) == name
