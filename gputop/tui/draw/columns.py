"""Tables of every screen: columns with titles, rows as cells, and which rows are chosen and in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gputop.system.text import cut, fit
from gputop.tui.draw import Span


class TableColumn(Struct, frozen=True):
    """A column of a table."""

    title: str
    width: int  # with the blank behind it
    cell: Callable[..., Span]  # makes the cell of a row
    from_width: int = 0  # terminals narrower than this do not have it
    left: bool = False  # whether its text is aligned to the left
    order: str | None = None  # the sort order that a click on its title chooses
    fills: bool = False  # whether a long text takes the blank behind it, too
    help: str = ""
    needs: str = ""  # the fact without which it has nothing to show
    grows: tuple[tuple[int, int], ...] = ()  # (terminal's columns from which on, width)

    def grown(self, terminal: int) -> TableColumn:
        """The column as wide as it is in a terminal of so many columns."""
        return replace(self, width=max((width for least, width in self.grows if terminal >= least), default=self.width))


def titles(columns: Sequence[TableColumn], order: str = "", reverse: bool = False) -> str:
    """The titles, each above its column; that of the column by which rows are sorted has a mark."""
    marks = {order: "▲" if reverse else "▼"} if order and order != "natural" else {}
    named = [(one, one.title + marks.get(one.order or "", "")) for one in columns]
    return "".join(fit(text, one.width) if one.left else f"{text:>{one.width - 1}} "[-one.width :] for one, text in named)


def cells(columns: Sequence[TableColumn], *row: object, chosen: str = "") -> list[Span]:
    """A row, from what ``cell`` of the columns takes; ``chosen``: its colour, whatever the cells are coloured in."""
    spans: list[Span] = []
    for column in columns:
        width, (text, style) = column.width, column.cell(*row)
        room = width - (not column.fills)
        if text.isascii() and len(text) <= room:  # as most are: no look at each character
            shown = text.ljust(width) if column.left else f"{text.rjust(width - 1)} "[:width]
        else:
            shown = fit(text, room) + " " * (width - room) if column.left else f"{cut(text, room):>{width - 1}} "[:width]
        spans.append((shown, chosen or style))
    return spans


def total(columns: Sequence[TableColumn]) -> int:
    """Width of all columns."""
    return sum(column.width for column in columns)


def stepped(count: int, at: int | None, by: int) -> int:
    """Index of the row ``by`` rows below the row ``at`` (None: no row is chosen), or at that end of ``count`` rows."""
    begin = at if at is not None else -1 if by > 0 else count
    return min(count - 1, max(0, begin + by))


def scrolled(top: int, selected: int | None, room: int, count: int) -> int:
    """The first of ``count`` rows to show, so that the selected one is in sight and no room is wasted."""
    if selected is not None:
        top = min(max(top, selected - room + 1), selected)
    return max(0, min(top, count - room))
