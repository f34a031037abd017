"""The time axis: columns of ``cell_ns`` each, shared by all lanes on the screen.

Cells are absolute slices of time: a column keeps its content while the chart moves, and a dip of the GPU stands over the
worker that starved at that moment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from math import ceil

from msgspec import Struct

from gputop.model.frame import SECOND_NS
from gputop.tui.draw import Span, time_of_day

WINDOWS_S = (10, 20, 30, 60, 120, 300, 600)  # s, the time bases
_LABEL = re.compile(r" [^─ ]+(?: [a-z]+)? ")  # a time on the ruler, such as " −10 s "
_CLOCK_ROOM, _BACK_ROOM = 10, 8  # columns that " 14:03:07 " and " −8 min " take


class Axis(Struct, frozen=True):
    """``columns`` cells, the newest of which is number ``last``; cell k holds ``k*cell_ns <= t < (k+1)*cell_ns``."""

    cell_ns: int
    last: int
    columns: int

    @property
    def first(self) -> int:
        """Number of the oldest cell shown."""
        return self.last - self.columns + 1

    def narrowed(self, columns: int) -> Axis:
        """An axis of the newest ``columns`` of these cells."""
        return Axis(self.cell_ns, self.last, columns)

    def column_of(self, t_ns: int) -> int | None:
        """The column of a moment, None when it is not shown."""
        column = t_ns // self.cell_ns - self.first
        return column if 0 <= column < self.columns else None

    def time_of(self, column: int) -> int:
        """The last moment of a column."""
        return (self.first + column + 1) * self.cell_ns - 1


def cell_for(window_s: int, columns: int, interval_ns: int) -> int:
    """Length of a cell in ns, so that ``columns`` cells hold about ``window_s``: a whole number of ticks."""
    ticks = window_s * SECOND_NS / max(1, columns) / interval_ns
    return max(1, round(ticks)) * interval_ns


def axis_line(axis: Axis, end_unix_s: float | None, label: str) -> list[Span]:
    """The ruler over the lanes: seconds back from now, or clock times while looking back."""
    return _ruler(axis.cell_ns, axis.columns, end_unix_s, label)


@lru_cache(maxsize=4)
def _ruler(cell_ns: int, columns: int, end_unix_s: float | None, label: str) -> list[Span]:
    cells = ["─"] * columns
    (_, last), *others = times(columns * cell_ns / SECOND_NS, columns, end_unix_s)
    _write(cells, columns - len(last) - 2, f" {last} ")
    for back, text in others:
        _write(cells, columns - 1 - round(back * SECOND_NS / cell_ns) - len(text) // 2, f" {text} ")
    return [(label, "dim"), ("".join(cells), "dim")]


def times(total_s: float, columns: int, end_unix_s: float | None) -> list[tuple[float, str]]:
    """(seconds back, text) of the times that fit ``columns``, the right end first: round lengths back, or clock times."""
    step = _step(total_s, columns // (_BACK_ROOM if end_unix_s is None else _CLOCK_ROOM))
    backs = [i * step for i in range(ceil(total_s / step))]
    if end_unix_s is not None:
        return [(back, time_of_day(end_unix_s - back)) for back in backs]
    unit, unit_s = ("min", 60) if step % 60 == 0 else ("s", 1)
    return [(back, f"−{back / unit_s:g} {unit}" if back else "now") for back in backs]


def with_signs(ruler: list[Span], signs: Iterable[tuple[int | None, str, str]]) -> list[Span]:
    """The ruler with signs (column, glyph, meaning) on it; column None is not shown, of two in one column the later one is.

    A time moves aside for a sign: half a number would be a wrong one.
    """
    (label, style), (text, meaning) = ruler
    shown = {c: (glyph, sign) for c, glyph, sign in signs if c is not None}
    text = _beside(text, shown.keys())
    out: list[Span] = [(label, style)]
    at = 0
    for column, (glyph, sign) in sorted(shown.items()):
        out += [(text[at:column], meaning), (glyph, sign)]
        at = column + 1
    return [*out, (text[at:], meaning)]


def _beside(text: str, taken: Collection[int]) -> str:
    """The ruler with its times moved off the columns ``taken``; a time that would move more than half its length is left out."""
    cells = ["─"] * len(text)
    times = [(found.start(), found[0]) for found in _LABEL.finditer(text)]
    # Times that can stay come first, so that no other one takes their place.
    for at, time in sorted(times, key=lambda one: not _has_room(cells, one[0], one[1], taken)):
        # The last time means the right end and cannot move.
        reach = len(time) // 2 + 1 if at + len(time) < len(cells) else 0
        places = sorted(range(at - reach, at + reach + 1), key=lambda place: abs(place - at))
        if (place := next((place for place in places if _has_room(cells, place, time, taken)), None)) is not None:
            _write(cells, place, time)
    return "".join(cells)


def _has_room(cells: list[str], at: int, time: str, taken: Collection[int]) -> bool:
    """Whether a time fits there; a sign may take the space beside it."""
    return _is_free(cells, at, time) and not any(at < column < at + len(time) - 1 for column in taken)


def _is_free(cells: list[str], at: int, text: str) -> bool:
    return at >= 0 and cells[at : at + len(text)] == ["─"] * len(text)


def _write(cells: list[str], at: int, text: str) -> None:
    """Write a time where all of it fits, else nothing."""
    if _is_free(cells, at, text):
        cells[at : at + len(text)] = text


def _step(total_s: float, most: int) -> float:
    """Seconds between times, so that at most ``most`` of them are shown."""
    return next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300) if total_s / s <= min(most, 6)), 600)
