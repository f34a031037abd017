"""The lanes: one row a series, all on one axis.

A cell holds the mean of what was read in it, or the maximum where the field is a percentile. A cell without a fresh reading
repeats the last one, dimmed, as long as the pace at which the driver measures lets that stand, and is blank after that: a gap is a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from math import log10
from operator import itemgetter

from msgspec import Struct

from gputop.history.columns import History, SeriesKey
from gputop.model.board import TICK_SLACK_NS
from gputop.model.fields import FIELDS, Field
from gputop.model.frame import SECOND_NS
from gputop.system.text import fit
from gputop.tui.draw import Span
from gputop.tui.draw.axis import Axis

BARS = "▁▂▃▄▅▆▇█"
FEW = 4
"""Columns that a lane may have moved since it was last drawn for its spans to be moved too, instead of made anew."""
_COLOURS = {"gpu.util_pct": "lane", "gpu.power_w": "lane2", "sync.p99_ms": "lane3"}


class Lane(Struct, frozen=True):
    """What a row shows: a series, its name on screen, and why it may be empty."""

    key: SeriesKey
    title: str
    top: float | None = None
    """Top of the chart where the subject knows it, such as a GPU's power limit."""
    absent: str = ""
    priority: int = 5
    """Which lanes go first when the screen is low: higher numbers."""

    @property
    def field(self) -> Field:
        """The registry's entry."""
        return FIELDS[self.key[0]]


class Moving:
    """The cells of one lane, remembered while its axis only moves: of a lane five times drawn, four times two cells are made."""

    __slots__ = ("_body", "_range", "_shape")

    def __init__(self) -> None:
        self._shape: tuple[object, ...] = ()
        self._range = (0, -1)
        self._body: list[Span] = []

    def spans(self, axis: Axis, newest: int, shape: tuple[object, ...], make: Callable[[int], Span]) -> list[Span]:
        """All cells, neighbours of one colour merged; ``make`` gives cell k. Cells before ``newest - 1`` are final.

        ``shape`` is what else the cells depend on: when it changes, all are made anew.
        """
        first, last = axis.first, axis.last
        settled = min(newest - 2, last)
        shape = (axis.cell_ns, *shape)
        if shape != self._shape or self._range != (first, settled):
            self._settle(first, settled, shape, make)
        return self._body + [make(k) for k in range(max(settled + 1, first), last + 1)]

    def _settle(self, first: int, last: int, shape: tuple[object, ...], make: Callable[[int], Span]) -> None:
        by = first - self._range[0]
        if shape == self._shape and 0 <= by <= FEW and 0 <= last - self._range[1] <= FEW and self._range[0] + by <= self._range[1]:
            self._drop(by)
            self._append([make(k) for k in range(self._range[1] + 1, last + 1)])
        else:
            self._body = merge([make(k) for k in range(first, last + 1)])
        self._shape, self._range = shape, (first, last)

    def _drop(self, count: int) -> None:
        """Take cells off the left end."""
        for _ in range(count):
            text, style = self._body[0]
            if len(text) > 1:
                self._body[0] = text[1:], style
            else:
                del self._body[0]

    def _append(self, cells: list[Span]) -> None:
        """Put cells on the right end."""
        for text, style in cells:
            if self._body and self._body[-1][1] == style:
                self._body[-1] = self._body[-1][0] + text, style
            else:
                self._body.append((text, style))


class LaneDrawer:
    """Draws lanes, keeping finished cells from one drawing to the next."""

    def __init__(self) -> None:
        self._lanes: dict[SeriesKey, Moving] = {}
        self._tops: dict[SeriesKey, tuple[tuple[int, ...], float]] = {}

    def line(self, lane: Lane, history: History, axis: Axis, label_width: int, at_ns: int, cursor: int | None) -> list[Span]:
        """Label, value at ``at_ns`` and cells; the column under ``cursor`` reversed."""
        spans = self._label(lane, history, label_width, at_ns)
        if lane.absent and lane.key not in history.series:
            return [*spans, (fit(lane.absent, axis.columns), "dim")]
        return spans + with_cursor(self._cells(lane, history, axis), cursor)

    def _label(self, lane: Lane, history: History, width: int, at_ns: int) -> list[Span]:
        spec, room = lane.field, width - 13
        value = _number(lane, history, at_ns)
        number = "–" if value != value else short(value, spec.digits)
        return [(fit(lane.title, room), ""), (f" {number:>6} ", level(spec, value) or "title"), (fit(spec.unit, 5), "dim")]

    def _cells(self, lane: Lane, history: History, axis: Axis) -> list[Span]:
        spec = lane.field
        scale = self._scale(lane, history, axis)
        newest = history.times[-1] // axis.cell_ns if history.times else 0
        moving = self._lanes.setdefault(lane.key, Moving())
        cell = axis.cell_ns
        return moving.spans(axis, newest, (scale, history.trimmed), lambda k: self._cell(lane, spec, history, k * cell, cell, scale))

    def _cell(self, lane: Lane, spec: Field, history: History, start_ns: int, cell_ns: int, scale: tuple[float, float]) -> Span:
        value = history.cell(lane.key, start_ns, start_ns + cell_ns, peak="p99" in spec.id)
        if value == value:
            return self._glyph(value, scale), level(spec, value) or _COLOURS.get(spec.id, "lane")
        if history.times and start_ns > history.times[-1]:
            return " ", ""
        slowest_ns = max(spec.refresh_ns, spec.slowest_ns)
        value = history.standing(lane.key, start_ns, spec.refresh_ns, slowest_ns) if slowest_ns else value
        return (self._glyph(value, scale), "held") if value == value else (" ", "")

    def _glyph(self, value: float, scale: tuple[float, float]) -> str:
        low, high = scale
        share = (value - low) / (high - low) if high > low else 0.0
        return BARS[min(len(BARS) - 1, max(0, int(share * len(BARS))))]

    def _scale(self, lane: Lane, history: History, axis: Axis) -> tuple[float, float]:
        spec = lane.field
        if spec.high is not None or lane.top:
            return spec.low, spec.high if spec.high is not None else lane.top or 1.0
        held_for, held = self._tops.get(lane.key, ((), 1.0))
        shown = (axis.cell_ns, axis.first)
        if shown == held_for:
            newest = history.top(lane.key, axis.last * axis.cell_ns, (axis.last + 1) * axis.cell_ns)
            held = nice_top(newest) if newest > held else held
        else:
            top = history.top(lane.key, axis.first * axis.cell_ns, (axis.last + 1) * axis.cell_ns)
            # What reads 0.0 beside the lane is no hill on it.
            wanted = max(nice_top(top) if top == top else 1.0, 10.0 ** (1 - spec.digits))
            # Shrinking at once would make the lane flicker between two scales.
            held = held if held_for and held > wanted and top > held / 5 else wanted
        self._tops[lane.key] = shown, held
        return spec.low, held


def _number(lane: Lane, history: History, at_ns: int) -> float:
    spec = lane.field
    if spec.mean_ns:
        return history.cell(lane.key, at_ns - spec.mean_ns + TICK_SLACK_NS, at_ns + 1)
    return history.at(lane.key, at_ns, max(2 * spec.refresh_ns, 2 * spec.slowest_ns, 3 * SECOND_NS // 2))


def level(spec: Field, value: float) -> str:
    """``crit``, ``warn`` or nothing."""
    if spec.crit is not None and value >= spec.crit:
        return "crit"
    return "warn" if spec.warn is not None and value >= spec.warn else ""


def nice_top(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 … at or above ``value``."""
    if value <= 0:
        return 1.0
    magnitude = 10.0 ** int(log10(value) // 1)
    return next(m * magnitude for m in (1, 2, 5, 10) if m * magnitude >= value)


def short(value: float, digits: int = 0) -> str:
    """A number in at most six characters."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f}M"
    if abs(value) >= 1e5:
        return f"{value / 1e3:.0f}k"
    return f"{value:.{digits if abs(value) < 1000 else 0}f}"


def merge(cells: list[Span]) -> list[Span]:
    """Neighbours of one colour as one span."""
    return [("".join(text for text, _ in group), style) for style, group in groupby(cells, key=itemgetter(1))]


def with_cursor(spans: list[Span], column: int | None) -> list[Span]:
    """The same spans with the cell in ``column`` reversed."""
    if column is None:
        return spans
    out: list[Span] = []
    for text, style in spans:
        if 0 <= column < len(text):
            out += [(text[:column], style), (text[column], "cursor"), (text[column + 1 :], style)]
        else:
            out.append((text, style))
        column -= len(text)
    return [span for span in out if span[0]]
