"""Tables in a row, each of which begins where those before it ended. What a field stood at is worked out when it is asked for."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from gputop.recording.columns.context import Layouts
from gputop.recording.columns.decode import Table, open_table
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.standing import Standing

MOST_SUBJECTS = 200_000
"""Of one field: what a made-up run may cost in memory."""
_Known = dict[tuple[str, str], tuple[int, Standing]]
"""(path, field) -> behind how many tables, and where it stands there."""


class _Link(Struct, frozen=True, eq=False):
    """A table, and the one before it. Nothing points forward, so that a run is gone with its last table."""

    count: int
    """Tables up to this one."""
    table: Table
    before: _Link | None


class Run:
    """The tables read so far."""

    def __init__(self, base: Run | None = None) -> None:
        """``base`` is the run at whose end this one begins."""
        self._base = base
        self._known: _Known = {}
        self._last: _Link | None = None

    def __len__(self) -> int:
        return self._last.count if self._last else 0

    def add(self, payload: bytes, layouts: Layouts | None = None) -> Table:
        """The next table. Raises ColumnError."""
        previous = self._last.table if self._last else None
        table = open_table(payload, partial(_standing, self._last, self._known, self._base), layouts, previous)
        self._last = _Link(len(self) + 1, table, self._last)
        return table

    def end(self, path: str, name: str) -> Standing:
        """Where a field stands after the last table."""
        return _standing(self._last, self._known, self._base, path, name).copy()


def _standing(last: _Link | None, known: _Known, base: Run | None, path: str, name: str) -> Standing:
    """Where a field stands behind a table. Raises ColumnError."""
    count = last.count if last else 0
    reached, standing = known.get((path, name), (count + 1, None))
    if standing is None or reached > count:
        reached, standing = 0, base.end(path, name) if base else Standing()
    for link in _from(reached, last):
        known[path, name] = link.count - 1, standing
        link.table.leave(path, name, standing)
        if len(standing) > MOST_SUBJECTS:
            raise ColumnError("a run tells of too many")
    known[path, name] = count, standing
    return standing


def _from(count: int, last: _Link | None) -> list[_Link]:
    """The links behind so many tables, up to the last."""
    links: list[_Link] = []
    while last is not None and last.count > count:
        links.append(last)
        last = last.before
    return links[::-1]
