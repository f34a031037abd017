"""Lanes as text: what a cell shows; moving a lane step by step gives what drawing it anew gives."""

from __future__ import annotations

import re

import pytest

from gputop.history.columns import History
from gputop.model.frame import SECOND_NS
from gputop.tui.draw import Span
from gputop.tui.draw.lanes import Lane, LaneDrawer, RollingCells, merge, nice_top
from gputop.tui.draw.view import Axis, axis_line, cell_for, with_signs

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
    spans = LaneDrawer().line(Lane((field, 0), "lane"), kept, axis, 28, kept.times[-1], None)
    return "".join(text for text, _ in spans)[28:]


def test_a_gap_is_a_gap_and_a_reading_stands_only_as_long_as_its_refresh() -> None:
    drawn = cells(history([100.0, None, None, None, None, None, None, None, 100.0, None]))
    assert drawn[0] == "█"
    assert drawn[1:4] == "███"
    assert drawn[4:8] == "    "
    assert drawn[8] == "█"


@pytest.mark.parametrize(("every", "ends"), [(2, 4), (10, 20), (11, 20), (30, 3)])
def test_a_reading_stands_twice_as_long_as_the_driver_took_for_it(every: int, ends: int) -> None:
    """NVML measures utilization six times a second or once, depending on the GPU; a reading after a gap does not show the pace."""
    kept = history([100.0 if i in (0, every) else None for i in range(every + 30)])
    axis = Axis(TICK, kept.times[-1] // TICK, 30)
    [_, _, _, *spans] = LaneDrawer().line(Lane(("gpu.util_pct", 0), "lane"), kept, axis, 28, kept.times[-1], None)
    assert "".join(text for text, _ in spans) == "█" * (ends + 1) + " " * (29 - ends)


def test_held_cells_are_dimmed() -> None:
    kept = history([50.0, None, 50.0])
    axis = Axis(TICK, 3, 3)
    spans = LaneDrawer().line(Lane(("gpu.util_pct", 0), "lane"), kept, axis, 28, kept.times[-1], None)
    assert [style for _, style in spans[3:]] == ["lane", "held", "lane"]


def test_a_measured_zero_is_drawn_and_a_missing_value_is_not() -> None:
    assert cells(history([0.0] * 10))[-1] == "▁"
    assert cells(history([None] * 10)).strip() == ""


@pytest.mark.parametrize(("value", "drawn"), [(0.02, "▁"), (0.9, "█"), (0.5, "▅"), (70.0, "▆")])
def test_what_reads_nothing_beside_the_lane_is_no_hill_on_it(value: float, drawn: str) -> None:
    assert cells(history([value] * 10, "gpu.pcie_rx_mb_per_s"), "gpu.pcie_rx_mb_per_s")[-1] == drawn


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
    [_, (told, _), *_] = LaneDrawer().line(Lane((field, 0), "lane"), kept, axis, 28, kept.times[-1], None)
    assert told.strip() == number
