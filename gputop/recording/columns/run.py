"""Tables in a row, each of which begins where those before it ended. What a field stood at is worked out when it is asked for."""

from __future__ import annotations

from functools import partial

from gputop.recording.columns.decode import Layouts
from gputop.recording.columns.decode import Table
from gputop.recording.columns.decode import open_table
from gputop.recording.columns.standing import Standing


class Run:
    """The tables read so far."""

    def __init__(self, base: Run | None = None) -> None:
        """``base`` is the run at whose end this one begins."""
        self.tables: list[Table] = []
        self._base = base
        self._known: dict[tuple[str, str], tuple[int, Standing]] = {}
        """(path, field) -> before which table, and where it stood there."""

    def add(self, payload: bytes, layouts: Layouts | None = None) -> Table:
        """The next table. Raises ColumnError."""
        table = open_table(payload, partial(self._standing, len(self.tables)), layouts)
        self.tables.append(table)
        return table

    def end(self, path: str, name: str) -> Standing:
        """Where a field stands after the last table."""
        return self._standing(len(self.tables), path, name).copy()

    def _standing(self, at: int, path: str, name: str) -> Standing:
        """Where it stood before a table. Raises ColumnError."""
        reached, standing = self._known.get((path, name), (at + 1, None))
        if standing is None or reached > at:
            reached, standing = 0, self._base.end(path, name) if self._base else Standing()
        for i in range(reached, at):
            self._known[path, name] = i, standing
            self.tables[i].leave(path, name, standing)
        self._known[path, name] = at, standing
        return standing
