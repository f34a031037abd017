"""Tables of every screen: columns with titles, rows as cells, and which rows are chosen and in sight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

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


def titles(columns: Sequence[TableColumn]) -> str:
    """The titles, each above its column."""
    return "".join(fit(one.title, one.width) if one.left else f"{one.title:>{one.width - 1}} " for one in columns)


def cells(columns: Sequence[TableColumn], *row: object, chosen: str = "") -> list[Span]:
    """A row, from what ``cell`` of the columns takes; ``chosen``: its colour, whatever the cells are coloured in."""
    spans: list[Span] = []
    for column in columns:
        width, (text, style) = column.width, column.cell(*row)
        room = width - (not column.fills)
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
