"""The user's view of the stream: which moment, how wide, which rows in what order; and the time axis that follows from it.

Keys change it; nothing here is measured. The axis has columns of ``cell_ns`` each, shared by all lanes on the screen. Cells are absolute
slices of time: a column keeps its content while the chart moves, and a dip of the GPU stands over the worker that starved at that moment.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import groupby
from math import ceil, log
from operator import itemgetter

from msgspec import Struct, field

from gputop.findings.verdict import Incident
from gputop.model.frame import SECOND_NS
from gputop.stream.session import Session
from gputop.system.text import clean
from gputop.tui.draw import Span, frame, time_of_day

LABEL_WIDTH, NARROW_LABEL_WIDTH = 28, 26  # columns left of the charts; in a terminal narrower than `NARROW`
NARROW = 110  # columns
USUAL_INTERVAL_NS = 100_000_000  # until the header of the stream gives its own
USUAL_WINDOW_S = 60  # s, the time base until the user chooses one
WINDOWS_S = (10, 20, 30, 60, 120, 300, 600)  # s, the time bases
FIRST_NS = 5 * SECOND_NS  # ns of the axis of a stream that has just begun; each longer one costs a drawing of all cells
STEP = 2.0  # times as long is the next axis, until a tick takes one column: each is drawn all anew
FILLED = 0.8  # part of the axis that must have something to show before it grows
_LABEL = re.compile(r" [^─ ]+(?: [a-z]+)? ")  # a time on the ruler, such as " −10 s "
_CLOCK_ROOM, _BACK_ROOM = 10, 8  # columns that " 14:03:07 " and " −8 min " take


class View(Struct):
    """Choices of the user. Methods that take a session read it: hold its lock."""

    window_s: int = USUAL_WINDOW_S  # s, the time base
    grows: bool = False  # whether the time base grows up to it with what there is to show; until the user chooses one
    end_ns: int | None = None  # the right end of the axis while paused; None follows the stream
    cursor_ns: int | None = None  # the moment under the cursor; None is the right end
    sort: str = "natural"
    reverse: bool = False
    tree: bool = True
    pattern: str = ""
    pid: int | None = None
    user: str | None = None
    selected: int | None = None  # pid of the selected row
    tagged: set[int] = field(default_factory=set)
    gpu: int = 0  # index of the GPU that gets the room where not all fit
    gpu_is_chosen: bool = False  # whether the user chose it: a heat map goes to the one that something is wrong with otherwise
    ascii_only: bool = False
    readonly: bool = False
    bystanders: bool = True
    lanes: tuple[str, ...] = ()  # fields whose lanes the user chose; none: what happens decides
    width: int = 160
    height: int = 48
    top_row: int = 0
    folded: set[int] = field(default_factory=set)  # pids of the trainers whose families have one row
    columns: tuple[str, ...] = ()  # titles of the table's columns that the user chose; none: the width decides
    framed: bool = False  # whether a frame is around the screen; ``width`` is what it leaves
    facts: frozenset[str] = frozenset()  # titles of columns that have something to show only sometimes, and have it now

    def resize(self, columns: int, rows: int) -> None:
        """Take another size of the terminal."""
        self.framed = frame.is_on(columns, rows)
        self.width, self.height = columns - (frame.LEFT + frame.RIGHT) * self.framed, rows

    @property
    def inset(self) -> int:
        """Columns left of each line."""
        return frame.LEFT if self.framed else 0

    @property
    def hides_bystanders(self) -> bool:
        """True if bystanders have no row; a pattern, pid or user that was asked for shows them."""
        return not (self.bystanders or self.pattern or self.pid or self.user)

    @property
    def chosen(self) -> str:
        """The processes that were asked for, in words; empty for all."""
        asked = (
            f"pid {self.pid}" if self.pid else "",
            f"user {self.user}" if self.user else "",
            f"/{clean(self.pattern)}" if self.pattern else "",
        )
        return " ".join(filter(None, asked))

    @property
    def at_ns(self) -> int | None:
        """The moment that numbers are shown for; None is now."""
        return self.cursor_ns if self.cursor_ns is not None else self.end_ns

    @property
    def label_width(self) -> int:
        """Columns left of the charts."""
        return LABEL_WIDTH if self.width >= NARROW else NARROW_LABEL_WIDTH

    @property
    def cells(self) -> int:
        """Columns of the charts."""
        return max(1, self.width - self.label_width)

    def end(self, session: Session) -> int:
        """The moment at the right end of the axis."""
        return self.end_ns if self.end_ns is not None else session.now_ns

    def axis(self, session: Session) -> Axis:
        """The charts' columns now."""
        cell_ns = self._cell_ns(session, self.window_s)
        if self.grows:
            cell_ns = min(cell_ns, self._grown_ns(session.now_ns - session.oldest_ns, self._cell_ns(session, 0)))
        return Axis(cell_ns, self.end(session) // cell_ns, self.cells)

    def _grown_ns(self, known_ns: int, tick_ns: int) -> int:
        """Length of a cell for what is known so far: a part of a tick in the first seconds, then whole ticks."""
        ticks_ns = self.cells * tick_ns
        if known_ns >= ticks_ns:
            return round(known_ns / ticks_ns) * tick_ns  # a quarter is empty at most
        steps = ceil(log(max(1.0, FILLED * known_ns / FIRST_NS)) / log(STEP))
        return max(1, min(tick_ns, round(FIRST_NS * STEP**steps / self.cells)))

    def _cell_ns(self, session: Session, window_s: int) -> int:
        return cell_for(window_s, self.cells, session.header.interval_ns if session.header else USUAL_INTERVAL_NS)

    # moving in time, while the stream is read on

    def toggle_pause(self, session: Session) -> None:
        """Hold the screen at this moment, or follow the stream again."""
        if self.end_ns is None:
            self.end_ns = session.now_ns
        else:
            self.follow()

    def follow(self) -> None:
        self.end_ns = self.cursor_ns = None

    def scrub(self, session: Session, columns: int) -> None:
        """Pause and move the cursor by columns."""
        self.go_to(session, (self.at_ns or session.now_ns) + columns * self.axis(session).cell_ns)

    def go_to(self, session: Session, t_ns: int) -> None:
        """Pause and put the cursor on a moment, or on the nearest end of what is remembered; the axis moves so that it shows it."""
        if self.end_ns is None:
            self.end_ns = session.now_ns
        self.cursor_ns = max(session.oldest_ns, min(t_ns, session.now_ns))
        axis = self.axis(session)
        if self.cursor_ns < axis.first * axis.cell_ns:
            self.end_ns = self.cursor_ns + (axis.columns * 3 // 4) * axis.cell_ns
        elif self.cursor_ns > self.end_ns:
            self.end_ns = min(session.now_ns, self.cursor_ns + (axis.columns // 4) * axis.cell_ns)

    def zoom(self, session: Session, steps: int) -> None:
        """Take a longer (positive) or shorter time base of `WINDOWS_S`."""
        window_s = self.window_s
        if self.grows:
            now, self.grows = self.axis(session), False
            window_s = max((base for base in WINDOWS_S if self._cell_ns(session, base) <= now.cell_ns), default=WINDOWS_S[0])
        at = WINDOWS_S.index(window_s) if window_s in WINDOWS_S else WINDOWS_S.index(USUAL_WINDOW_S)
        self.window_s = WINDOWS_S[min(len(WINDOWS_S) - 1, max(0, at + steps))]

    def next_incident(self, session: Session, direction: int) -> Incident | None:
        """Put the cursor on the next (1) or previous (-1) incident, where it was first shown; returns the incident, or None without one."""
        known = [one for one in session.engine.incidents if one.start_ns >= session.oldest_ns]
        found = session.next_shown(known, self.at_ns or session.now_ns, direction)
        if found is not None:
            self.go_to(session, session.shown_ns(found))
        return found


# the time axis


class Axis(Struct, frozen=True):
    """``columns`` cells, up to number ``last``, the newest; cell k holds ``k*cell_ns <= t < (k+1)*cell_ns``."""

    cell_ns: int
    last: int
    columns: int

    @property
    def first(self) -> int:
        """Number of the oldest cell shown."""
        return self.last - self.columns + 1

    def narrowed(self, columns: int) -> Axis:
        """An axis of the newest ``columns`` cells of this one."""
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
        at, time = columns - 1 - round(back * SECOND_NS / cell_ns) - len(text) // 2, f" {text} "
        # The last time stands left of its moment: the one before may have to move, too.
        _write(cells, next((at - by for by in range(len(text) // 2) if _is_free(cells, at - by, time)), at), time)
    return [(label, "dim"), ("".join(cells), "dim")]


def times(total_s: float, columns: int, end_unix_s: float | None) -> list[tuple[float, str]]:
    """(seconds back, text) of the times that fit ``columns``, the right end first: round lengths back, or clock times."""
    step = _step(total_s, columns // (_BACK_ROOM if end_unix_s is None else _CLOCK_ROOM))
    backs = [i * step for i in range(ceil(total_s / step))]
    if end_unix_s is not None:
        return [(back, time_of_day(end_unix_s - back)) for back in backs]
    unit, unit_s = ("min", 60) if step % 60 == 0 else ("s", 1)
    return [(back, f"−{back / unit_s:g} {unit}" if back else "now") for back in backs]


def with_signs(
    ruler: list[Span], signs: Iterable[tuple[int | None, str, str]], spans: Iterable[tuple[int, int]] = (), sign: str = ""
) -> list[Span]:  # fmt: skip
    """The ruler with signs (column, glyph, meaning) on it; column None is not shown, of two in one column the later one is.

    A time moves aside for a sign: half a number would be a wrong one. ``spans``: columns (first, last) in which the ruler is heavy, and
    has the meaning ``sign``.
    """
    (label, style), (text, meaning) = ruler
    shown = {c: (glyph, sign) for c, glyph, sign in signs if c is not None}
    cells = [(char, meaning) for char in _beside(text, shown.keys())]
    for first, last in spans:
        for column in range(max(0, first), min(len(cells), last + 1)):
            if cells[column][0] == "─":
                cells[column] = "━", sign
    for column, cell in shown.items():
        cells[column] = cell
    return [(label, style), *(("".join(char for char, _ in run), one) for one, run in groupby(cells, key=itemgetter(1)))]


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
    """True if a time fits there; a sign may take the space next to it."""
    return _is_free(cells, at, time) and not any(at < column < at + len(time) - 1 for column in taken)


def _is_free(cells: list[str], at: int, text: str) -> bool:
    return at >= 0 and cells[at : at + len(text)] == ["─"] * len(text)


def _write(cells: list[str], at: int, text: str) -> None:
    """Write a time if it fits whole."""
    if _is_free(cells, at, text):
        cells[at : at + len(text)] = text


def _step(total_s: float, most: int) -> float:
    """Seconds between times, so that at most ``most`` times are shown."""
    return next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300) if total_s / s <= min(most, 6)), 600)
