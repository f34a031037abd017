"""Lanes as text: what a cell shows; moving a lane step by step gives what drawing it anew gives."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from msgspec.structs import replace

from gputop.commands.live import _begin_as_left
from gputop.commands.screen import Pacer
from gputop.findings.lanes import LANES_OF_CAUSE
from gputop.findings.verdict import CAUSES, Verdict
from gputop.model.fields import FIELDS, STEPS
from gputop.model.frame import SECOND_NS
from gputop.model.serving import Serving
from gputop.stream.history import STRETCH, History
from gputop.system import screenstate
from gputop.tui.choice_box import LanesScreen
from gputop.tui.draw import Span, ascii_line
from gputop.tui.draw.lanes import (
    SHADED,
    UNENDED,
    Lane,
    LaneDrawer,
    RollingCells,
    all_lanes,
    fold,
    fold_quiet,
    incident_cells,
    merge,
    nice_top,
    share_rows,
    shown_lanes,
)
from gputop.tui.draw.story import STORY_NS, Story
from gputop.tui.draw.view import Axis, View, axis_line, cell_for, with_signs
from gputop.tui.widgets import Scrolled
from tests.tui import scene
from tests.tui.conftest import MakeApp
from tests.tui.test_dashboard import part

if TYPE_CHECKING:
    from gputop.tui.app import GputopApp

TICK = 100_000_000
CELL = 5 * TICK


def make(k: int) -> Span:
    return "▁▂▃"[k % 3], "warn" if k % 7 < 3 else "lane"


@pytest.mark.parametrize("steps", [[1, 1, 1, 2, 4, 1], [0, 0, 1, 0], [9, 1, 30, 1], [1, -3, 1]])
def test_moving_gives_what_drawing_anew_gives(steps: list[int]) -> None:
    moving, last = RollingCells(), 100
    for step in steps:
        last += step
        axis = Axis(CELL, last, 40)
        spans = moving.spans(axis, last, (), make)
        anew = [make(k) for k in range(axis.first, axis.last + 1)]
        assert merge(spans) == merge(anew)


def test_a_change_of_shape_makes_all_cells_anew() -> None:
    moving, axis = RollingCells(), Axis(CELL, 100, 20)
    moving.spans(axis, 100, (1,), make)
    assert merge(moving.spans(axis, 100, (2,), lambda _: ("x", "crit"))) == [("x" * 20, "crit")]


def history(values: list[float | None], field: str = "gpu.util_pct") -> History:
    kept = History(TICK)
    for i, value in enumerate(values):
        kept.tick((i + 1) * TICK)
        if value is not None:
            kept.put(field, 0, value)
    return kept


def cells(kept: History, field: str = "gpu.util_pct") -> str:
    """The lane's last ten columns of one tick each."""
    axis = Axis(TICK, kept.times[-1] // TICK, 10)
    return "".join(text for text, _ in drawn(kept, axis, field)[0])[28:]


def drawn(kept: History, axis: Axis, field: str = "gpu.util_pct", rows: int = 1) -> list[list[Span]]:
    """The lines of the lane."""
    return LaneDrawer().lines(Lane((field, 0), "lane"), rows, kept, axis, label_width=28, at_ns=kept.times[-1], cursor=None)


def test_a_gap_is_a_gap_and_a_reading_stands_only_as_long_as_its_refresh() -> None:
    assert cells(history([100.0, None, None, None, None, None, None, None, 100.0, None]))[:9] == "▇▇▇▇    ▇"


@pytest.mark.parametrize(("every", "ends"), [(2, 4), (10, 20), (11, 20), (30, 3)])
def test_a_reading_stands_twice_as_long_as_the_driver_took_for_it(every: int, ends: int) -> None:
    """NVML measures utilization six times a second or once, depending on the GPU; a reading after a gap does not show the pace."""
    kept = history([100.0 if i in (0, every) else None for i in range(every + 30)])
    axis = Axis(TICK, kept.times[-1] // TICK, 30)
    [[_, _, _, _, *spans]] = drawn(kept, axis)
    assert "".join(text for text, _ in spans) == "▇" * (ends + 1) + " " * (29 - ends)


@pytest.mark.parametrize(("value", "colour"), [(50.0, "lane"), (99.0, "crit")])
def test_a_reading_that_stands_has_the_colour_of_a_new_one(value: float, colour: str) -> None:
    kept = history([value, None, value], "gpu.mem_used_pct")
    [spans] = drawn(kept, Axis(TICK, 3, 3), "gpu.mem_used_pct")
    assert {style for _, style in spans[4:]} == {colour}


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_no_lane_touches_the_one_above_it(rows: int) -> None:
    kept = history([0.0, 50.0, 100.0, 300.0] * 3)
    top = "".join(text for text, _ in drawn(kept, Axis(TICK, 12, 10), rows=rows)[0])[28:]
    assert "█" not in top
    assert "▇" in top


def test_a_measured_zero_is_drawn_and_a_missing_value_is_not() -> None:
    assert cells(history([0.0] * 10))[-1] == "▁"
    assert cells(history([None] * 10)).strip() == ""


@pytest.mark.parametrize(("value", "shown"), [(0.02, "▁"), (0.9, "▇"), (0.5, "▄"), (70.0, "▅")])
def test_what_reads_nothing_beside_the_lane_is_no_hill_on_it(value: float, shown: str) -> None:
    assert cells(history([value] * 10, "gpu.pcie_rx_mb_per_s"), "gpu.pcie_rx_mb_per_s")[-1] == shown


def test_a_tall_lane_stacks_eighths_and_names_its_scale_and_thresholds() -> None:
    kept = history([0.0, 25.0, 26.0, 50.0, 87.4, 87.5, 99.9, 100.0, None, None], "runq.pct")
    lines = drawn(kept, Axis(TICK, 10, 10), "runq.pct", rows=4)
    assert [text[27:] for text in ("".join(part for part, _ in line) for line in lines)] == [
        "┤    ▄▄▇▇  ",
        "│    ████  ",
        "╌╌╌▁█████╌╌",
        "┤▁███████  ",
    ]
    sides = ["".join(part for part, _ in line)[:27].split() for line in lines]
    assert sides == [["lane", "100", "%", "100"], [], ["30"], ["warn", "10,", "crit", "30", "0"]]


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_a_tall_lane_that_moves_shows_what_one_drawn_anew_shows(rows: int) -> None:
    values = [float(n * 37 % 101) for n in range(80)]
    kept, moving = history(values[:40], "runq.pct"), LaneDrawer()
    for i, value in enumerate(values[40:]):
        axis = Axis(2 * TICK, kept.times[-1] // (2 * TICK), 15)
        lane = Lane(("runq.pct", 0), "lane")
        shown = moving.lines(lane, rows, kept, axis, label_width=28, at_ns=kept.times[-1], cursor=None)
        anew = drawn(kept, axis, "runq.pct", rows)
        assert [merge(line[4:]) for line in shown[:1]] == [merge(line[4:]) for line in anew[:1]]
        assert ["".join(text for text, _ in line) for line in shown] == ["".join(text for text, _ in line) for line in anew]
        kept.tick((41 + i) * TICK)
        kept.put("runq.pct", 0, value)


def test_what_a_reading_is_of_is_drawn_though_it_was_read_later() -> None:
    """The CPUs are read every other tick: a column of one tick shows the reading that spans it."""
    kept = history([None, 50.0, None, 50.0, None, None, None, 50.0, None, 50.0], "cpu.busy_pct")
    assert cells(kept, "cpu.busy_pct") == "▄▄▄▄  ▄▄▄▄"


def test_the_story_stands_on_top_steps_then_the_gpu_then_what_the_cause_shows_in() -> None:
    seen = scene.session()
    seen.history.put(STEPS, scene.TRAINER, 7.5)
    lanes = all_lanes(seen, View())
    assert seen.engine.verdict.cause == "cpu-contention"
    assert [lane.key[0] for lane in lanes[:4]] == [STEPS, "gpu.util_pct", "runq.pct", "cpu.busy_pct"]
    assert all(lane.main for lane in lanes[:4])
    assert len({lane.key for lane in lanes}) == len(lanes)


def test_causes_that_take_turns_move_no_lane() -> None:
    story, told = Story(), []
    healthy, cause, other = Verdict(), Verdict(cause="h2d-transfer", gpu=0), Verdict(cause="straggler-rank", gpu=1)
    for second, verdict in enumerate([healthy, cause, *[other, healthy, cause] * 6, *[other] * 8]):
        told.append(story.of(verdict, second * SECOND_NS).cause)
    assert told[:2] == ["none", "h2d-transfer"], "the first trouble at once"
    assert set(told[1:20]) == {"h2d-transfer"}
    assert told[20:].index("straggler-rank") == STORY_NS // SECOND_NS
    assert story.of(healthy, 0).cause == "straggler-rank", "time that goes back begins to count again"
    assert story.of(healthy, STORY_NS).cause == "none"


def test_lanes_of_the_host_that_read_zero_throughout_are_named_in_a_line() -> None:
    seen = scene.session(150)
    axis = View(width=128).axis(seen)
    lanes = [Lane(("psi.io_pct", 0), "PSI io"), Lane(("net.rx_mb_per_s", 0), "net rx"), Lane(("gpu.util_pct", 0), "util")]
    seen.history.put("net.rx_mb_per_s", 0, 0.04)
    assert fold_quiet(lanes, seen, axis) == ([lanes[0], lanes[2]], "net rx 0 MB/s"), "PSI io read 1 %"
    main = [Lane(("net.rx_mb_per_s", 0), "net rx", main=True)]
    assert fold_quiet(main, seen, axis) == (main, ""), "the cause shows in it"
    assert fold_quiet(lanes, scene.session(90), axis) == (lanes, ""), "too early"
    seen.history.put("net.rx_mb_per_s", 0, 0.06)
    assert fold_quiet(lanes, seen, axis) == (lanes, "")


async def test_lanes_are_chosen_by_hand_and_kept(make_app: MakeApp) -> None:
    seen = scene.session(150)
    seen.history.put("net.rx_mb_per_s", 0, 0.0)
    app = make_app(seen)
    async with app.run_test(size=(160, 60)) as pilot:
        assert any(line.startswith("quiet:") and "net rx" in line for line in part(app, "lanes"))
        await pilot.press("v")
        assert isinstance(app.screen, LanesScreen)
        names = [line[5:].split("  ")[0] for line in app.screen.query_one(Scrolled).text.split("\n")[1:]]
        assert "[ ] net rx" in app.screen.query_one(Scrolled).text
        await pilot.press(*["down"] * names.index("net rx"), "space", "escape")
        await pilot.pause()
        assert any(line.startswith("net rx") for line in part(app, "lanes"))
        kept = app.context.view.lanes
        screenstate.save(screenstate.Saved(lanes=kept))
        assert screenstate.load().lanes == kept
        view = View()
        _begin_as_left(view, screenstate.Saved(lanes=(*kept, "no.such_lane")))
        assert view.lanes == kept
        await pilot.press("v", *["down"] * names.index("util"), "space", "escape")
        await pilot.pause()
        assert any(line.startswith("GPU 0 util") for line in part(app, "lanes")), "it is always drawn"
        await pilot.press("v", "a", "escape")
        assert app.context.view.lanes == ()


@pytest.mark.parametrize("rows", [4, 5, 9, 30])
@pytest.mark.parametrize("chosen", [(), ("psi.io_pct",)])
def test_four_series_have_a_row_wherever_there_are_four(rows: int, chosen: tuple[str, ...]) -> None:
    """Without eBPF, and with lanes that a cause has put first."""
    seen = scene.session(200)
    seen.history.put(STEPS, scene.TRAINER, 7.5)
    found, _ = shown_lanes(seen, View(lanes=chosen))
    drawn = {lane.key for lane, _ in share_rows(found, rows, seen.history.series)}
    assert drawn >= {("gpu.util_pct", 0), ("gpu.power_w", 0), ("sync.p99_ms", 0), ("runq.pct", 0)}


def test_cells_in_an_incident_are_shaded_as_is_the_ruler_and_moving_gives_the_same() -> None:
    kept = history([50.0, 50.0, None, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0])
    moving, lane = LaneDrawer(), Lane(("gpu.util_pct", 0), "lane")
    steps: list[tuple[int, tuple[tuple[int, int], ...], int]] = [
        (9, ((3, UNENDED),), 7), (10, ((3, UNENDED),), 8), (10, ((3, 5),), 3), (10, (), 0), (10, ((-9, 2), (8, 8)), 3),
        (10, ((-9, UNENDED),), 10), (10, ((1, 10),), 10), (10, ((2, UNENDED),), 9), (10, ((1, 9),), 9),
    ]  # fmt: skip
    for last, within, shaded in steps:
        axis = Axis(TICK, last, 10)
        for drawer in (moving, LaneDrawer()):
            [line] = drawer.lines(lane, 1, kept, axis, label_width=28, at_ns=kept.times[-1], cursor=None, within=within)
            assert sum(len(text) for text, style in line if style.endswith(SHADED)) == shaded
    ruler = with_signs(axis_line(Axis(TICK, 9, 40), None, "label"), [(2, "▼", "incident")], [(2, 5), (39, UNENDED)], "incident")
    told = "".join(text for text, _ in ruler)
    assert told[5:11] == "──▼━━━"
    assert "now" in told, "a time stays readable"
    assert {style for text, style in ruler if "━" in text} == {"incident"}
    assert ascii_line([("━", "")]) == [("=", "")]


def test_incidents_of_many_jobs_at_once_are_one_stretch() -> None:
    """Of twenty ranks that wait for one each has an incident: a row is shaded by stretches, not once for each of them."""
    seen, axis = scene.session(150), Axis(CELL, 40, 30)
    [one, *_], lasted = seen.engine.incidents, [(12, 14), (13, 13), (15, 20), (22, None), (23, 30), (3, 8)]  # cells
    seen.engine.incidents[:] = [replace(one, start_ns=a * CELL, end_ns=None if b is None else b * CELL) for a, b in lasted]
    assert incident_cells(seen, axis) == ((12, 20), (22, UNENDED))


@pytest.mark.parametrize(
    ("window_s", "columns", "seconds"), [(60, 160, 2 * 60 / 132), (10, 160, 0.25), (600, 160, 1.0), (60, 400, 2 * 60 / 372)]
)
def test_a_live_screen_is_drawn_for_each_two_columns_within_bounds(window_s: int, columns: int, seconds: float) -> None:
    pacer, news = Pacer(), list[None]()
    assert pacer() == 0.0
    context = SimpleNamespace(view=View(window_s, width=columns))
    pacer.app = cast("GputopApp", SimpleNamespace(on_news=lambda: news.append(None), context=context))
    assert pacer() == pytest.approx(max(seconds, 0.25))
    assert len(news) == 1


def test_an_incident_of_the_engine_is_in_sight_until_it_left_the_axis() -> None:
    seen = scene.session(150)
    axis = View(width=128).axis(seen)
    assert seen.engine.incidents
    first = seen.engine.incidents[0]
    assert incident_cells(seen, axis)[0] == (first.start_ns // axis.cell_ns, UNENDED)
    first.end_ns = first.start_ns + SECOND_NS
    assert incident_cells(seen, axis)[0][1] == first.end_ns // axis.cell_ns
    assert incident_cells(seen, Axis(axis.cell_ns, first.start_ns // axis.cell_ns - 1, 10)) == ()


@pytest.mark.parametrize("field", ["gpu.power_w", "gpu.util_pct", "runq.pct"])
def test_cells_shorter_than_a_tick_are_filled(field: str) -> None:
    kept = history([50.0] * 12, field)
    axis = Axis(TICK * 2 // 7, (12 * TICK) // (TICK * 2 // 7), 30)
    [line] = drawn(kept, axis, field)
    assert " " not in "".join(text for text, _ in line)[28:]
    kept.put_state(7, 1, 0)
    assert all(kept.state_cell(7, k * axis.cell_ns, (k + 1) * axis.cell_ns) == 1 for k in range(axis.first, axis.last))


def test_each_cause_has_lanes_that_there_are() -> None:
    assert LANES_OF_CAUSE.keys() <= set(CAUSES)
    assert {field for fields in LANES_OF_CAUSE.values() for field in fields} <= FIELDS.keys()


def test_a_pace_is_forgotten_with_its_trainer_once_it_left_the_axis() -> None:
    kept = History(TICK)
    for i in range(kept.capacity + 3 * STRETCH):
        kept.tick((i + 1) * TICK)
        if i < 10:
            kept.put(STEPS, 7, 2.0)
        if i == 20:
            kept.forget_ended(())
            assert (STEPS, 7) in kept.series
    kept.forget_ended((7,))
    assert (STEPS, 7) in kept.series
    kept.forget_ended(())
    assert (STEPS, 7) not in kept.series


GPU = [Lane(("gpu.util_pct", 0), "util", priority=1, main=True), Lane(("gpu.power_w", 0), "power", priority=2, main=True)]
REST = [Lane((f"psi.{name}_pct", 0), name, priority=9 - i) for i, name in enumerate(("cpu", "io", "memory"))]


@pytest.mark.parametrize(
    ("rows", "heights"),
    [
        (0, []), (1, [1]), (3, [1, 1, 1]), (5, [1, 1, 1, 1, 1]), (6, [2, 1, 1, 1, 1]), (8, [3, 2, 1, 1, 1]), (11, [4, 4, 1, 1, 1]),
        (40, [4, 4, 1, 1, 1]),
    ],
)  # fmt: skip
def test_main_lanes_grow_into_rows_that_are_left(rows: int, heights: list[int]) -> None:
    series = [lane.key for lane in [*GPU, *REST]]
    shared = share_rows([*GPU, *REST], rows, series)
    assert [height for _, height in shared] == heights
    assert [lane for lane, _ in share_rows([*GPU, *REST], 3, series)] == [*GPU, REST[2]], "the most important ones"
    assert share_rows([*GPU, *REST], 40, series[1:])[0] == (GPU[0], 1), "a lane without a reading stays low"


def test_lanes_that_never_told_anything_fold_into_a_line_and_come_back() -> None:
    session = scene.session(130)
    sync, net = Lane(("sync.p99_ms", 0), "sync p99", absent="needs eBPF"), Lane(("net.rx_mb_per_s", 0), "net rx", absent="needs eBPF")
    lanes = [*GPU, sync, net]
    assert fold(lanes, session) == (GPU, "sync p99, net rx: needs eBPF")
    assert fold(lanes[:3], session) == (lanes[:3], ""), "one alone has room for its reason"
    assert fold(lanes, scene.session(90)) == (lanes, ""), "it may still come"
    session.history.put("sync.p99_ms", 0, 1.0)
    assert fold(lanes, session) == (lanes, "")


@pytest.mark.parametrize(("value", "top"), [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (3.0, 5.0), (700.0, 1000.0), (1001.0, 2000.0)])
def test_tops_are_round(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)


_TIME = r"−\d+ s|now"


def signed(ruler: list[Span], *columns: int) -> str:
    return "".join(text for text, _ in with_signs(ruler, [(column, "!", "crit") for column in columns])[1:])


@pytest.mark.parametrize("columns", [52, 72, 92, 132])
def test_a_time_steps_aside_for_a_sign(columns: int) -> None:
    ruler = axis_line(Axis(cell_for(60, columns, TICK), 100, columns), None, "last 60 s")
    plain = ruler[1][0]
    times = re.findall(_TIME, plain)
    assert times[-1] == "now"
    for column in range(columns):
        shown = signed(ruler, column)
        assert (len(shown), shown[column]) == (columns, "!")
        in_end = columns - 4 <= column < columns - 1
        assert re.findall(_TIME, shown) == times[: -1 if in_end else None], "that of the end stays there, or is left out"
        assert set(re.sub(_TIME, "", shown)) <= {"─", "!", " "}
        for time in times[:-1]:
            moved = abs(shown.index(time) - plain.index(time))
            assert moved <= len(f" {time} ") // 2 + 1
            assert not moved or plain.index(time) <= column < plain.index(time) + len(time)


@pytest.mark.parametrize("end_unix_s", [None, 1_795_000_000.0])
@pytest.mark.parametrize("window_s", [10, 60, 300, 600])
def test_times_are_whole_or_left_out(window_s: int, end_unix_s: float | None) -> None:
    for columns in range(1, 60):
        ruler = axis_line(Axis(cell_for(window_s, columns, TICK), 100, columns), end_unix_s, "")[1][0]
        assert len(ruler) == columns
        assert re.fullmatch(r"(─*( (now|−[\d.]+ (s|min)|\d\d:\d\d:\d\d) )?)*", ruler), ruler
        assert len(set(re.findall(r"\d (s|min)", ruler))) <= 1, "in one unit"


def test_a_time_in_a_crowd_of_signs_is_left_out() -> None:
    ruler = axis_line(Axis(SECOND_NS, 100, 60), None, "last 60 s")
    at = ruler[1][0].index("−20 s")
    shown = signed(ruler, *range(at - 3, at + 8))
    assert "−20" not in shown
    assert {"−10 s", "−30 s", "now"} <= set(re.findall(_TIME, shown))


@pytest.mark.parametrize(("field", "number"), [("switches.per_s", "40"), ("offcpu.pct", "0")])
def test_what_is_read_of_one_process_after_the_other_has_the_mean_of_a_second_beside_it(field: str, number: str) -> None:
    kept = history([*[900.0] * 10, *[80.0, 0.0] * 5], field)
    axis = Axis(TICK, kept.times[-1] // TICK, 10)
    [[_, (told, _), *_]] = drawn(kept, axis, field)
    assert told.strip() == number


@pytest.mark.parametrize(
    ("ticks", "columns", "shown_s"),
    [
        (2, 140, 5), (40, 140, 5), (80, 140, 10), (100, 140, 10), (139, 140, 14), (200, 140, 14), (220, 140, 28), (340, 140, 28),
        (360, 140, 42), (500, 140, 56), (900, 140, 56), (2, 54, 5), (50, 54, 5), (60, 54, 5), (100, 54, 11),
    ],
)
def test_the_time_base_grows_with_what_there_is_until_one_is_chosen(ticks: int, columns: int, shown_s: int) -> None:
    session = scene.session(ticks + 1, gpus=0)
    view = View(grows=True, width=columns + (28 if columns > 100 else 26))
    axis = view.axis(session)
    assert round(axis.cell_ns * axis.columns / SECOND_NS) == shown_s
    view.zoom(session, 1)
    assert not view.grows
    assert view.axis(session).cell_ns > axis.cell_ns, "the key changes what is seen"
    assert view.axis(session) == View(window_s=view.window_s, width=view.width).axis(session)


def test_lanes_of_several_servers_have_their_pids() -> None:
    """Also of those that give no values; one alone needs no pid."""
    session = scene.session(60)
    for pids, titles in (((7,), ["tokens"]), ((7, 9), ["tokens of 7", "tokens of 9"])):
        session.board.servings = {(pid, "", "", ""): Serving(pid=pid, address="127.0.0.1:80", problem="too slow") for pid in pids}
        assert [lane.title for lane in all_lanes(session, View(width=120)) if lane.absent == "too slow"] == titles
