"""What the tables of a block share: which rows they have, what stood before them, and how much they may still claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from gputop.recording.columns.layout import FREE_ROWS, MOST_CELLS, ColumnError, Order, Pick
from gputop.recording.columns.standing import Standing


class Layout(Struct, eq=False):
    """Which rows a table has: from one second to the next mostly the same subjects in the same places."""

    order: Order
    keys: dict[str, Sequence[Any]]
    """The key fields, in the order of rows."""
    lengths: list[int]
    """How many rows each row of the table above has, -1 for None; of the topmost, none."""
    groups: Sequence[Sequence[int] | None] | None = None
    """See `gputop.recording.columns.thin`."""
    at_rows: Pick | None = None
    """See `gputop.tables.rows`."""


_T = TypeVar("_T")


class Layouts:
    """The layouts of the block before, and the lengths that lead to them, by the columns that they were made from."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Any]] = {}

    def get(self, path: str, made_from: Any, make: Callable[[], _T]) -> _T:
        """What was kept, if nothing has changed."""
        known = self._known.get(path)
        if known is None or known[0] != made_from:
            known = self._known[path] = made_from, make()
        kept: _T = known[1]
        return kept


Before = Callable[[str, str], Standing]
"""(path, field) -> where it stood before a table, see `gputop.recording.columns.standing`."""


class Context:
    """What the tables of a block share."""

    def __init__(self, before: Before, layouts: Layouts, previous: Context | None = None, size: int = 0) -> None:
        """``previous`` is that of the block before, where it is read too; ``size`` is the block's in bytes."""
        self._before = before
        self._previous = previous
        self.layouts = layouts
        self.rows_left = FREE_ROWS + size
        self._cells_left = MOST_CELLS
        self._lasts: dict[tuple[str, str], tuple[Order, list[Any]]] = {}

    def claim(self, rows: Any, columns: int) -> int:
        """So many rows of another table. Raises ColumnError where that is no number, or more than are left."""
        count = bounded(rows, min(self.rows_left, self._cells_left // columns))
        self.rows_left -= count
        self._cells_left -= count * columns
        return count

    def lasts(self, path: str, name: str, order: Order, make: Callable[[], list[Any]]) -> list[Any]:
        """Each subject's last value in a column, worked out once."""
        known = self._lasts.get((path, name))
        if known is None:
            known = self._lasts[path, name] = order, make()
        return known[1]

    def stood(self, path: str, name: str, order: Order, unseen: Any = 0) -> Sequence[Any]:
        """Where each subject stood before this block: mostly, where it ended in the block before."""
        known = self._previous._lasts.get((path, name)) if self._previous else None
        if known is not None and known[0] is order:
            return known[1]
        return self._before(path, name).of(order, unseen)


def bounded(count: Any, most: int) -> int:
    """``count``, where it is one and at most ``most``. Raises ColumnError."""
    if type(count) is not int or not 0 <= count <= most:
        raise ColumnError("a table claims too many rows")
    return count
