"""Columns to frames, or to the few columns that are asked for. How the values of one column come back stands in `integers`, `counts` and
`unrelated`, the latter for what does not build upon the block before.

What is read may be damaged or made up by an enemy: rows are counted before they are made, and every value has the type that
its field declares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import chain, islice, repeat
from operator import add
from typing import Any, TypeVar

import msgspec

from gputop.model.frame import Frame, ThreadSample
from gputop.recording.columns import unrelated
from gputop.recording.columns.context import Before, Context, Layout, Layouts, bounded
from gputop.recording.columns.counts import Counts, with_changes
from gputop.recording.columns.integers import ENDS_KNOWN, INTEGERS, Integers
from gputop.recording.columns.layout import (
    ABOVE_NS,
    CHANGES,
    CONST,
    GROWTH,
    LAST_INTS,
    LAST_SCALED,
    LESS,
    MAIN_THREAD,
    STEPS,
    SWITCHES,
    TABLE,
    ColumnError,
    FieldPlan,
    Order,
    plans_of,
    told_less,
)
from gputop.recording.columns.standing import Standing
from gputop.recording.columns.sums import whole, with_absent, with_absent_at_last, with_main, with_switches

BROKEN = (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, ZeroDivisionError, RecursionError)
"""What values of the wrong types bring about."""
_TABLES = (TABLE, CHANGES)
_Read = TypeVar("_Read")
_KEY = FieldPlan("", "int", Any, True, None)
_LENGTH = FieldPlan("", "int", int, False, None)


def open_table(payload: bytes, before: Before | None = None, layouts: Layouts | None = None, previous: Table | None = None) -> Table:
    """A table of frames; ``layouts`` is kept from block to block by who reads many. Raises ColumnError."""
    try:
        above = previous._context if previous is not None else None
        context = Context(before or (lambda *_: Standing()), layouts or Layouts(), above, len(payload))
        return Table(Frame, msgspec.msgpack.decode(payload), context)
    except BROKEN as error:
        raise ColumnError(f"a table is broken: {error}") from None


def _reading(read: Callable[[Table, str], _Read]) -> Callable[[Table, str], _Read]:
    """A method that reads a column: whatever a made-up one brings about becomes a ColumnError."""

    @wraps(read)
    def reading(table: Table, name: str) -> _Read:
        try:
            return read(table, name)
        except BROKEN as error:
            raise ColumnError(f"column {name} is broken: {error}") from None

    return reading


class Table:
    """A table whose columns are decoded when they are asked for."""

    def __init__(
        self, struct: type, packed: Any, context: Context, above: Table | None = None, name: str = "", lengths: Any = None
    ) -> None:
        """``above`` is the table whose rows hold these in their field ``name``, ``lengths`` the packed column that says how many."""
        self.struct = struct
        self.path: str = f"{above.path}.{name}" if above is not None else ""
        self.plan = plans_of(struct)
        self.rows = context.claim(packed[0], len(self.plan))
        self._context = context
        self._columns: dict[str, Any] = dict(packed[2])
        timed = any(ABOVE_NS in field.less for field in self.plan.values())
        self._above_ns = above.column("t_ns") if above is not None and timed else ()
        self._below: dict[str, Table] = {}
        self._at_paths: dict[str, Table | None] = {}
        packed_keys = [self._columns.pop(name) for name in packed[1]] if self.rows else []
        parent, counts = (above.layout, above.lengths(name, lengths)) if above is not None else (None, [])
        self.layout: Layout = context.layouts.get(
            self.path, (parent, counts, self.rows, packed[1], packed_keys), lambda: self._lay_out(above, counts, packed[1], packed_keys)
        )
        self._integers = Integers(context, self.path, self.order)
        self._counts = Counts(context, self.path, self.order)

    @property
    def order(self) -> Order:
        """Its rows by subject."""
        return self.layout.order

    def _lay_out(self, above: Table | None, lengths: list[int], names: list[str], packed_keys: list[Any]) -> Layout:
        parents = [0] * self.rows if above is None else list(chain.from_iterable(map(repeat, above.order.ids, lengths)))
        if len(parents) != self.rows:
            raise ColumnError("a table has another length than its parent says")
        keys = {name: unrelated.straight(_KEY, key, self.rows) for name, key in zip(names, packed_keys, strict=False)}
        return Layout(Order(parents, [()] if above is None else above.order.subjects, list(keys.values())), keys, lengths)

    @_reading
    def column(self, name: str) -> Sequence[Any]:
        """A field's values in the order of rows; structs where the field holds them. Raises ColumnError."""
        return self._read(name, by_row=True)

    @_reading
    def column_by_subject(self, name: str) -> Sequence[Any]:
        """The same in the order of subjects (see `order`), which for counters is the quicker one."""
        return self._read(name, by_row=False)

    @_reading
    def at_last(self, name: str) -> Sequence[Any]:
        """A field's value in the last row of each subject; the quickest, for the steps there need not be read."""
        field, packed = self.plan[name], self._columns.get(name)
        values = self._at_last(field, packed)
        if packed is not None and packed[0] == LESS:
            return list(map(add, values, told_less(field, partial(self._other, self.at_last, field.unit))))
        if name == "timeslices" and self.plan.keys() >= SWITCHES:
            return with_switches(values, self.at_last("vol"), self.at_last("invol"))
        return values

    def _other(self, column: Callable[[str], Sequence[int]], unit: int, name: str) -> Sequence[int]:
        """What another field is told less: of each row or, where that is what ``column`` gives, of each subject's last one."""
        if name != ABOVE_NS:
            return column(name)
        t_ns = list(chain.from_iterable(map(repeat, self._above_ns, self.layout.lengths)))
        rows = range(self.rows) if column == self.column else self.order.last_rows
        return [t_ns[row] - t_ns[row] % unit for row in rows]

    @_reading
    def last_told(self, name: str) -> list[tuple[int, Any]]:
        """Of each subject, the last row (in order of subjects) in which a field is there, and its value; (-1, None) where it is not."""
        field, packed = self.plan[name], self._columns.get(name)
        if packed is not None and packed[0] in (LAST_SCALED, *ENDS_KNOWN):
            absent = packed[1]
            rows = [end - 1 if absent is None else absent.rfind(0, start, end) for start, end in self.order.spans]
            values = self._at_last(field, [packed[0], None, *packed[2:]])
            return [(row, value) if row >= 0 else (-1, None) for row, value in zip(rows, values, strict=True)]
        column = self.column_by_subject(name)
        told = (range(end - 1, start - 1, -1) for start, end in self.order.spans)
        return [next(((row, column[row]) for row in rows if column[row] is not None), (-1, None)) for rows in told]

    @_reading
    def steps(self, name: str) -> tuple[Sequence[int], list[int], list[int]] | None:
        """Of a counter that is there in every row: where each subject stood before, where it then stands, and how each row (in order of
        subjects) differs from what stood before it. None where it is not kept so."""
        packed = self._columns.get(name)
        if packed is None or packed[0] not in (LAST_INTS, STEPS) or packed[1] is not None or name == "timeslices":
            return None
        return self._integers.course(name, packed)

    def tells(self, name: str) -> bool:
        """Whether a field that may be absent is there in any row."""
        packed = self._columns.get(name)
        return packed is not None and packed != [CONST, None]

    def _at_last(self, field: FieldPlan, packed: Any) -> Sequence[Any]:
        if field.name in self.layout.keys:
            return list(map(self.layout.keys[field.name].__getitem__, self.order.last_rows))
        if packed is None:
            return unrelated.defaults(field, len(self.order.ends))
        code = packed[0]
        if code in ENDS_KNOWN and field.kind == "int":
            return with_absent_at_last(field, packed[1], self._integers.lasts(field.name, packed), self.order)
        if code == GROWTH and field.kind == "counts":
            return self._counts.lasts(field.name, packed)
        found = unrelated.at_last(field, packed, self.order)
        if found is not None:
            return found
        values, straight = self._column(field, packed)
        return self.order.at_ends(self.order.by_subject(values) if straight else values)

    def _read(self, name: str, by_row: bool) -> Sequence[Any]:
        field, packed = self.plan[name], self._columns.get(name)
        values, straight = self._column(field, packed)
        if packed is not None and packed[0] == LESS:
            less = told_less(field, partial(self._other, self.column, field.unit))
            values, straight = list(map(add, self.order.by_row(values), less)), True
        if name == "timeslices" and self.plan.keys() >= SWITCHES:
            values = with_switches(values if straight else self.order.by_row(values), self.column("vol"), self.column("invol"))
            straight = True
        if straight == by_row:
            return values
        return self.order.by_row(values) if by_row else self.order.by_subject(values)

    def _column(self, field: FieldPlan, packed: Any) -> tuple[Sequence[Any], bool]:
        """Values, and whether they are in the order of rows."""
        if field.name in self.layout.keys:
            return unrelated.typed(field, self.layout.keys[field.name]), True
        if packed is None:
            return unrelated.defaults(field, self.rows), True
        return (self._nested(field, packed[0]), True) if packed[0] in _TABLES else self._values(field, packed)

    @_reading
    def children(self, name: str) -> tuple[list[int], Table] | None:
        """The table below a field, and how many of its rows each row has (-1: None); None where no row has any."""
        packed = self._columns.get(name)
        if packed is None or packed[0] not in _TABLES:
            return None
        below = self._below.get(name)
        if below is None:
            child = self.plan[name].child
            if child is None:
                raise ColumnError("a table stands where none belongs")
            below = Table(child, packed[2], self._context, self, name, packed[1])
            if not self.plan[name].nullable and min(below.layout.lengths, default=0) < 0:
                raise ColumnError("a list is absent that must be there")
            self._below[name] = below
        return below.layout.lengths, below

    def leave(self, path: str, name: str, standing: Standing) -> None:
        """Take ``standing``, which is of a field below here, to where it stands after this table. Raises ColumnError."""
        above, _, field = path.rpartition(".") if not name else (path, "", name)
        table = self._at(above)
        if table is None or field not in table._columns:
            return
        lasts = table._integers_left(field) if name else table._counts_left(field)
        if lasts is not None:
            standing.put(table.order, lasts)

    def _at(self, path: str) -> Table | None:
        """The table at a path below here."""
        if not path:
            return self
        if path not in self._at_paths:
            above, _, name = path.rpartition(".")
            table = self._at(above)
            below = table.children(name) if table is not None else None
            self._at_paths[path] = below[1] if below else None
        return self._at_paths[path]

    @_reading
    def _integers_left(self, name: str) -> list[int] | None:
        """Each subject's last value in a column of integers, None where it is none."""
        packed = self._columns[name]
        told = packed[1] if packed[0] in _TABLES else packed
        return self._integers.lasts(name, told) if told[0] in INTEGERS else None

    @_reading
    def _counts_left(self, name: str) -> list[dict[int, int]] | None:
        """The same of a column of counts."""
        packed = self._columns[name]
        return self._counts.lasts(name, packed) if packed[0] == GROWTH else None

    def lengths(self, name: str, packed: Any) -> list[int]:
        """How many rows of the table below a field each row has."""
        made_from = self.order, packed, self._context.stood(self.path, name, self.order)
        return self._context.layouts.get(f"{self.path}.{name} lengths", made_from, lambda: self._lengths(name, packed))

    def _lengths(self, name: str, packed: Any) -> list[int]:
        values, straight = self._values(_LENGTH, packed, name)
        lengths = list(values if straight else self.order.by_row(values))
        bounded(sum(map(max, lengths, repeat(0))), self._context.rows_left)
        return lengths

    def _nested(self, field: FieldPlan, code: int) -> Sequence[Any]:
        below = self.children(field.name)
        lengths, table = below if below else ([], None)
        if field.kind == "counts" and table:
            entries = zip(table.column("bucket"), table.column("count"), strict=True) if table.rows else iter(())
            told = [dict(islice(entries, max(0, length))) for length in lengths]
            return with_changes(told, self.order) if code == CHANGES else told
        held = structs(table) if table else []
        if field.child is ThreadSample and any(thread.timeslices == -1 for thread in held):
            held = with_main(zip(*map(self.column, MAIN_THREAD), strict=True), lengths, held)
        rows = iter(held)
        if field.kind == "one":
            return [next(rows) if length > 0 else None for length in lengths]
        return [list(islice(rows, length)) if length >= 0 else None for length in lengths]

    def _values(self, field: FieldPlan, packed: Any, name: str = "") -> tuple[Sequence[Any], bool]:
        """As `_column`, of what holds no tables."""
        code = packed[0]
        if code in unrelated.STRAIGHT:
            return unrelated.straight(field, packed, self.rows), True
        if code in INTEGERS and field.kind == "int":
            return with_absent(field, packed[1], whole(self._integers.values(name or field.name, packed))), False
        if code == GROWTH and field.kind == "counts":
            return self._counts.values(field.name, packed), False
        return unrelated.by_subject(field, packed, self.order), False


def structs(table: Table) -> list[Any]:
    """All rows of a table, as its structs. Raises ColumnError."""
    if not table.rows:
        return []
    return list(map(table.struct, *(table.column(name) for name in table.plan)))
