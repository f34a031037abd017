"""`z`: one lane as large as the terminal, with its scale, thresholds and incidents, a cursor, and percentiles."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from textual.binding import Binding

from gputop.model.fields import words_of_lane
from gputop.model.frame import SECOND_NS
from gputop.stream.history import SeriesKey
from gputop.system.text import cut
from gputop.tui.box import CLOSE_KEY, Box
from gputop.tui.draw import Line, Span, time_of_day
from gputop.tui.draw.heat import instance_lanes
from gputop.tui.draw.lanes import (
    GUIDE,
    Guide,
    Lane,
    LaneDrawer,
    all_lanes,
    brief_number,
    cell_value,
    colour_of,
    incident_cells,
    level,
    ruler,
    short,
    shown_lanes,
)
from gputop.tui.draw.view import Axis
from gputop.tui.feed import Context
from gputop.tui.panels import Time

PERCENTILES = (50, 90, 99)
GUTTER = 7  # columns left of the chart: numbers of its scale
TICKS = 4  # parts of the scale that have a number
LEAST_BACK_S = 0.05  # s before now that are printed as now
LEAST_ROWS = 3  # rows of the chart
NOTHING = "nothing measured in this time"


class EnlargeScreen(Box):
    """One lane over the time that the dashboard shows; left and right move a cursor, up and down choose another lane."""

    NAME = ("z", "one lane")
    REFRESH_S = 2.0  # all of the box is sent each time
    BINDINGS = [
        Binding("right,l", "cursor(1)", "cursor forward"),
        Binding("left,h", "cursor(-1)", "cursor back"),
        Binding("shift+right,L", "cursor(10)", "cursor forward by ten columns"),
        Binding("shift+left,H", "cursor(-10)", "cursor back by ten columns"),
        Binding("end", "cursor(0)", "no cursor"),
        Binding("tab", "scroll(1)", "next lane"),
        Binding("d", "distribution", "distribution"),
        Binding("z", "dismiss", "close", show=False),
    ]

    FOOTER = (
        ("←→", "cursor", "cursor(-1)"), ("↑↓", "other lanes", "scroll(1)"), ("d", "distribution", "distribution"), CLOSE_KEY,
        ("End", "no cursor", "cursor(0)"),
    )  # fmt: skip

    def __init__(self, context: Context, time_shown: Time, first: SeriesKey | None = None) -> None:
        """``first``: the series to begin with; None: the first lane."""
        super().__init__(context)
        self._time = time_shown
        self._drawer = LaneDrawer()
        self.index = 0  # the lane, by its place on the dashboard; behind those of the dashboard are those of MIG devices
        if first is not None:
            with self.session.lock:
                self.index = next((i for i, lane in enumerate(self._lanes()) if lane.key == first), 0)
        self.cursor_ns: int | None = None  # the moment under the cursor
        self.distribution = False
        self._lane = ""

    @property
    def first_line(self) -> str:
        return self._lane

    def lines(self) -> Sequence[Line]:
        """The chart, or the distribution, and what the readings are in numbers."""
        session, view = self.session, self.view
        lanes = self._lanes()
        if not lanes:
            return [[(NOTHING, "")]]
        lane, axis = lanes[self.index % len(lanes)], self._axis
        start_ns, end_ns = axis.first * axis.cell_ns, view.end(session)
        newer = session.board_at(view.end_ns)
        waits = session.histogram(lane.key[0], session.board_at(max(session.oldest_ns, start_ns)), newer) if self.distribution else {}
        values = [value for _, value in session.history.values(lane.key, start_ns, end_ns + 1)]
        self._lane = f"{lane.title} [{lane.field.unit}]"
        facts = words_of_lane(lane.key[0], newer.host)
        about: list[Line] = [[(f"host: {facts}", "")]] if facts else []
        if not values and not waits:
            return [[(lane.absent or NOTHING, "")], *about]
        if self.distribution:
            return [*self._bars(lane, values, waits), *about]
        about = [self._values(lane, axis), *([(cut(line, self.text_width), "")] for line in summary(lane, values)), *about]
        return [*self._chart(lane, axis, max(LEAST_ROWS, self.text_height - len(about) - 2)), *about]

    def _lanes(self) -> list[Lane]:
        board = self.session.board
        return [*all_lanes(self.session, self.view), *instance_lanes(board.gpus[index] for index in sorted(board.gpus))]

    @property
    def _axis(self) -> Axis:
        return replace(self.view.axis(self.session), columns=max(1, self.text_width - GUTTER))

    def _chart(self, lane: Lane, axis: Axis, rows: int) -> list[Line]:
        """The ruler, and the lane in its colour over ``rows`` rows."""
        session = self.session
        column = axis.column_of(self.cursor_ns) if self.cursor_ns is not None else None
        scale, guides, cells = self._drawer.chart(lane, rows, session.history, axis, column, incident_cells(session, axis))
        sides = [_side(scale, guides.get(row), row, rows) for row in range(rows - 1, -1, -1)]
        return [ruler(session, axis, self._time.axis_end_s, " " * GUTTER), *(side + row for side, row in zip(sides, cells, strict=True))]

    def _values(self, lane: Lane, axis: Axis) -> Line:
        """What the lane shows under the cursor, and the other lanes at the same moment; without a cursor, at the end of the axis."""
        session, view = self.session, self.view
        at_ns = view.end(session) if self.cursor_ns is None else self.cursor_ns
        back_s = (view.end(session) - at_ns) / SECOND_NS
        when = f"−{back_s:.1f} s" if back_s >= LEAST_BACK_S else "now"
        if self._time.axis_end_s is not None:
            when = time_of_day(session.unix_s(at_ns), True)
        causes = [
            one.cause for one in session.engine.incidents
            if one.start_ns <= at_ns and (one.end_ns is None or at_ns <= one.end_ns) and one.severity != "info"
        ]  # fmt: skip
        start_ns = at_ns // axis.cell_ns * axis.cell_ns if self.cursor_ns is not None else at_ns - at_ns % axis.cell_ns - axis.cell_ns
        others = [one for one in shown_lanes(session, view)[0] if one.key != lane.key]
        told = {one.title: cell_value(one, session.history, start_ns, axis.cell_ns) for one in others}
        value = cell_value(lane, session.history, start_ns, axis.cell_ns)
        spans: list[Span] = [
            (f"{when}  ", "title"), (_number(lane, value), level(lane.field, value) or "title"),
            (f"  in {', '.join(dict.fromkeys(causes))}" if causes else "", "incident"),
        ]  # fmt: skip
        room = self.text_width - sum(len(text) for text, _ in spans)
        beside = " · ".join(f"{one.title} {_number(one, told[one.title])}" for one in others if told[one.title] == told[one.title])
        return [*spans, (cut(f"   {beside}", room) if room > GUTTER else "", "dim")]

    def action_cursor(self, columns: int) -> None:
        """Move the cursor by columns; 0 takes it away."""
        with self.session.lock:
            axis, end_ns = self._axis, self.view.end(self.session)
            moved_ns = (end_ns if self.cursor_ns is None else self.cursor_ns) + columns * axis.cell_ns
            self.cursor_ns = max(axis.first * axis.cell_ns, min(moved_ns, end_ns)) if columns else None
        self.refresh_text()

    def action_scroll(self, rows: int) -> None:
        """Choose the next lane, or the one before."""
        self.index += 1 if rows > 0 else -1
        self.refresh_text()

    def action_distribution(self) -> None:
        """Show values over time, or how often each value occurs."""
        self.distribution = not self.distribution
        self.refresh_text()

    def _bars(self, lane: Lane, values: list[float], waits: dict[int, int]) -> list[Line]:
        """The distribution: of single waits where the probes counted them, else of the readings."""
        bars = wait_bars(waits) if waits else value_bars(values)
        room = self.text_width - 28
        most = max(count for _, count in bars)
        return [
            [("every wait that ended in this time" if waits else "readings in this time", "")],
            *([(f"{label:>14} {count:>9} ", ""), ("█" * round(room * count / most), colour_of(lane))] for label, count in bars),
            [(f"{sum(count for _, count in bars)} in all, {lane.field.unit}", "")],
        ]


def _number(lane: Lane, value: float) -> str:
    return f"{short(value, lane.field.digits) if value == value else '–'} {lane.field.unit}"


def _side(scale: tuple[float, float], guide: Guide | None, row: int, rows: int) -> list[Span]:
    """Text left of a row of the chart, counted from below: a threshold, or a number of the scale."""
    if guide is not None:
        return [(f"{brief_number(guide[0]):>{GUTTER - 1}}", guide[1]), (GUIDE, "dim")]
    low, high = scale
    parts = range(TICKS + 1) if rows > 2 * TICKS else (0, TICKS)
    ticks = {round(part * (rows - 1) / TICKS): low + part * (high - low) / TICKS for part in parts}
    return [(f"{brief_number(ticks[row]):>{GUTTER - 1}}┤" if row in ticks else f"{'│':>{GUTTER}}", "dim")]


def wait_bars(waits: dict[int, int]) -> list[tuple[str, int]]:
    """(range in ms, count) by powers of two; the probes have four buckets in each."""
    octaves: dict[int, int] = {}
    for bucket, count in waits.items():
        octaves[bucket // 4] = octaves.get(bucket // 4, 0) + count
    return [(f"< {2 ** (octave + 1) / 1e6:.3g} ms", octaves.get(octave, 0)) for octave in range(min(octaves), max(octaves) + 1)]


def value_bars(values: list[float], bins: int = 12) -> list[tuple[str, int]]:
    """(range, count) of readings in ``bins`` equal steps."""
    low, high = min(values), max(values)
    step = (high - low) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / step))] += 1
    return [(f"< {low + (i + 1) * step:.4g}", count) for i, count in enumerate(counts)]


def summary(lane: Lane, values: list[float]) -> list[str]:
    """One line of count, mean, percentiles and extremes, one line for the source and its pace."""
    ordered, spec = sorted(values), lane.field
    parts = [f"{len(values)} readings", f"mean {sum(values) / len(values):.4g}", f"min {ordered[0]:.4g}"]
    parts += [f"p{p} {ordered[min(len(ordered) - 1, len(ordered) * p // 100)]:.4g}" for p in PERCENTILES]
    pace = f", new every {spec.refresh_ns / SECOND_NS:.2g} s" if spec.refresh_ns else ""
    slowest = f" ({spec.slowest_ns / SECOND_NS:.2g} s at the slowest)" if spec.slowest_ns > spec.refresh_ns else ""
    return ["  ".join([*parts, f"max {ordered[-1]:.4g} {spec.unit}"]), f"source: {spec.source}{pace}{slowest}"]
