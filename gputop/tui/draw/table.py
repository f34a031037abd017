"""The process table: its columns, and the state lane of each process on the same axis as the charts above."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from gputop.history.columns import History
from gputop.model.fields import FIELDS
from gputop.session.session import word_of
from gputop.system.text import cut, fit
from gputop.tui.draw import Line, Span
from gputop.tui.draw.lanes import RollingCells, level, merge, with_cursor
from gputop.tui.draw.rows import SORTS, Row
from gputop.tui.draw.view import Axis, View

GLYPHS = {
    "": " ", "running": "▄", "computing": "▄", "runnable": "▒", "disk": "▪", "memory": "◆", "throttled": "▼", "blocked": "–",
    "ahead": "·", "stopped": "■", "waiting-data": "░", "waiting-gpu": "▂", "transfer": "►", "sleeping": " ", "dead": "×",
}  # fmt: skip
STARVING_GLYPH = "█"
INFERRED_MARK = "~"
HIDDEN = "bystanders hidden (b)"


class Column(Struct, frozen=True):
    """A column of the table."""

    title: str
    width: int
    cell: Callable[[Row, View], Span]
    from_width: int = 0  # terminals narrower than this do not have it
    left: bool = False  # whether its text is aligned to the left
    order: str | None = None  # the sort order (of `SORTS`) that a click on its title chooses


def heading(view: View, lane_columns: int) -> Line:
    """Column titles, the sort order, and what is left out."""
    text = "".join(fit(one.title, one.width) if one.left else one.title.rjust(one.width - 1) + " " for one in columns(view))
    order = "" if view.sort == "natural" else f"  by {SORTS[view.sort][0]}{' reversed' if view.reverse else ''}"
    title = HIDDEN if view.hides_bystanders else "state lane, same axis" if lane_columns >= 40 else "state"
    chosen = view.chosen
    return [
        (fit(text, view.width - lane_columns), "head"),
        (fit(f"only {chosen}", lane_columns), "warn") if chosen else (fit(title + order, lane_columns), "head"),
    ]


def lane_columns(view: View) -> int:
    """Columns of the state lanes: as many of the axis's as the table's own columns leave."""
    return min(view.cells, view.width - _total(columns(view)))


class TableDrawer:
    """Draws rows; keeps finished cells and numbers from one drawing to the next: rows are drawn five times a second and change once."""

    def __init__(self) -> None:
        self._cells: dict[int, RollingCells] = {}
        self._numbers: dict[int, tuple[Row, object, list[Span]]] = {}

    def line(self, row: Row, view: View, history: History, axis: Axis, cursor: int | None) -> Line:
        """One process; a starving worker stands out by colour, glyph and word."""
        return [*self._numbers_of(row, view, axis.columns), *with_cursor(self._lane(row.pid, history, axis), cursor)]

    def forget_all_but(self, rows: list[Row]) -> None:
        """Drop what is kept of processes that have no row any more."""
        pids = {row.pid for row in rows}
        for kept in (self._cells, self._numbers):
            for pid in kept.keys() - pids:
                del kept[pid]

    def _numbers_of(self, row: Row, view: View, lane_columns: int) -> list[Span]:
        key = (row.pid == view.selected, row.pid in view.tagged, view.width, lane_columns)
        kept = self._numbers.get(row.pid)
        if kept is None or kept[0] is not row or kept[1] != key:
            kept = self._numbers[row.pid] = row, key, _draw_numbers(row, view, lane_columns)
        return kept[2]

    def _lane(self, pid: int, history: History, axis: Axis) -> list[Span]:
        if pid not in history.states:
            self._cells.pop(pid, None)
            return [(" " * axis.columns, "")]
        cell_ns, newest = axis.cell_ns, history.times[-1] // axis.cell_ns
        cells = self._cells.setdefault(pid, RollingCells())
        return cells.spans(axis, newest, (history.trimmed,), lambda k: glyph(history.state_cell(pid, k * cell_ns, (k + 1) * cell_ns)))


def _draw_numbers(row: Row, view: View, lane_columns: int) -> list[Span]:
    chosen = "selected" if row.pid == view.selected else "starving" if row.starving else ""
    spans: list[Span] = []
    for column in columns(view):
        width, (text, style) = column.width, column.cell(row, view)
        # A tag before seven digits takes the blank behind them, and so does a mark behind a state.
        room = width - (column.cell not in (_pid, _state))
        shown = fit(text, room) + " " * (width - room) if column.left else f"{cut(text, room):>{width - 1}} "[:width]
        spans.append((shown, chosen or style))
    spans.append((" " * (view.width - _total(columns(view)) - lane_columns), chosen if chosen == "selected" else ""))
    return merge([span for span in spans if span[0]])


def glyph(code: int) -> Span:
    """Glyph and colour of a state code."""
    word, starving, _ = word_of(code)
    if starving:
        return STARVING_GLYPH, "starving"
    return GLYPHS[word], word


# the cells


def _pid(row: Row, view: View) -> Span:
    return ("*" if row.pid in view.tagged else "") + str(row.pid), "" if row.role else "dim"


def _who(row: Row, view: View) -> Span:
    if row.role and row.role.kind == "trainer":
        return f"▾ {row.who}" if view.tree else row.who, "title"
    return "  " * row.depth + row.who, "" if row.role else "dim"


def _state(row: Row, _view: View) -> Span:
    mark = INFERRED_MARK * row.inferred
    if row.starving:
        return f"● STARVING{mark}", "starving"
    return row.state + mark, row.state if row.role else "dim"


def _number(name: str, field: str = "") -> Callable[[Row, View], Span]:
    """A number; ``field`` gives the thresholds that colour it."""

    def cell(row: Row, _view: View) -> Span:
        value = getattr(row, name)
        if value is None or not row.role:
            return "–" if value is None else f"{value:.0f}", "dim"
        return f"{value:.0f}", level(FIELDS[field], value) if field else ""

    return cell


def _bytes(name: str) -> Callable[[Row, View], Span]:
    def cell(row: Row, _view: View) -> Span:
        value = getattr(row, name)
        return ("–", "dim") if value is None else (size(value), "" if row.role else "dim")

    return cell


def size(value: float) -> str:
    """Bytes in at most six characters."""
    for unit in ("B", "K", "M", "G", "T"):
        if value < 1000 or unit == "T":
            return f"{value:.0f}{unit}" if unit in "BK" or value >= 10 else f"{value:.1f}{unit}"
        value /= 1024
    return ""


def _gpu(row: Row, _view: View) -> Span:
    return row.gpu, ""


def _user(row: Row, _view: View) -> Span:
    return row.user, "dim"


_COLUMNS = (
    Column("PID", 8, _pid, order="pid"),
    Column("USER", 9, _user, 170, left=True, order="user"),
    Column("GPU", 4, _gpu, 130, order="natural"),
    Column("WHO", 20, _who, left=True, order="natural"),
    Column("STATE", 13, _state, left=True),
    Column("CPU%", 6, _number("cpu_pct"), order="cpu"),
    Column("RUNQ%", 6, _number("runq_pct", "runq.pct"), order="runq"),
    Column("DISK%", 6, _number("disk_pct", "psi.io_pct"), 120),
    Column("IO/s", 6, _bytes("disk_bytes_per_s"), 180),
    Column("SW/s", 7, _number("switches_per_s"), 100, order="switches"),
    Column("INV/s", 7, _number("invol_per_s"), 120),
    Column("RSS", 6, _bytes("rss_bytes"), 100, order="mem"),
    Column("GPU-MEM", 8, _bytes("gpu_mem_bytes"), order="gpu-mem"),
    Column("SM%", 5, _number("sm_pct"), 130, order="sm"),
)


def order_at(view: View, x: int) -> str | None:
    """The sort order that the title at column ``x`` of the screen stands for; None where none does."""
    end = 0
    for column in columns(view):
        end += column.width
        if x < end:
            return column.order
    return None


def columns(view: View) -> tuple[Column, ...]:
    """The columns that fit the terminal."""
    return _fitting(view.width)


@lru_cache(maxsize=8)
def _fitting(width: int) -> tuple[Column, ...]:
    fitting = tuple(column for column in _COLUMNS if width >= column.from_width)
    while len(fitting) > 3 and _total(fitting) > width:
        fitting = fitting[:-1]
    return fitting


def _total(shown: tuple[Column, ...]) -> int:
    return sum(column.width for column in shown)
