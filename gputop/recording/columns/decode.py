"""Columns to frames, or to the few columns that are asked for.

What is read may be damaged or made up by an enemy: rows are counted before they are made, and every value has the type that
its field declares.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from itertools import chain
from itertools import islice
from itertools import repeat
from typing import Any

import msgspec

from gputop.frame import Frame
from gputop.frame import ThreadSample
from gputop.recording.columns.layout import ANY
from gputop.recording.columns.layout import CONST
from gputop.recording.columns.layout import DOUBLES
from gputop.recording.columns.layout import INTS
from gputop.recording.columns.layout import MAX_ROWS
from gputop.recording.columns.layout import RUNNING
from gputop.recording.columns.layout import SCALED
from gputop.recording.columns.layout import SWITCHES
from gputop.recording.columns.layout import TABLE
from gputop.recording.columns.layout import WORDS
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.layout import FieldPlan
from gputop.recording.columns.layout import Order
from gputop.recording.columns.layout import Reference
from gputop.recording.columns.layout import Subject
from gputop.recording.columns.layout import from_planes
from gputop.recording.columns.layout import plan_of
from gputop.recording.columns.layout import unpack_integers

_BROKEN = (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, ZeroDivisionError, RecursionError)
_KEY = FieldPlan("", "int", Any, True, None)
_LENGTH = FieldPlan("", "int", int, False, None)
_MAIN = ("pid", "oncpu_ns", "run_delay_ns", "timeslices", "state", "vol", "invol")
"""What a main thread's sample repeats of its process's."""


class Orders:
    """The orders of the block before: from one second to the next it is mostly the same subjects in the same places."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Order]] = {}

    def get(self, path: str, parents: Sequence[int], above: Sequence[Subject], packed: list[Any], keys: list[Sequence[Any]]) -> Order:
        """The order of a table, from what was kept if nothing has changed. ``packed`` are its key columns as they stand there."""
        now = (parents, above, packed)
        known = self._known.get(path)
        if known is None or known[0] != now:
            known = self._known[path] = now, Order(parents, above, keys)
        return known[1]


class _Context:
    """What the tables of a block share."""

    def __init__(self, reference: Reference, orders: Orders, learnt: Reference | None = None) -> None:
        self.reference = reference
        self.orders = orders
        self.learnt = learnt
        self.rows_left = MAX_ROWS


def decode(payload: bytes, reference: Reference, orders: Orders | None = None) -> list[Frame]:
    """The frames of a table. Raises ColumnError."""
    return _structs(open_table(payload, reference, orders))


def reference_of(payload: bytes) -> Reference:
    """What later blocks build upon, from a table that builds upon nothing itself. Raises ColumnError."""
    learnt = Reference()
    _structs(_open(payload, _Context(Reference(), Orders(), learnt)))
    return learnt


def open_table(payload: bytes, reference: Reference, orders: Orders | None = None) -> Table:
    """A table of frames; ``orders`` is kept from block to block by who reads many. Raises ColumnError."""
    return _open(payload, _Context(reference, orders or Orders()))


def _open(payload: bytes, context: _Context) -> Table:
    try:
        packed = msgspec.msgpack.decode(payload)
        return Table("", Frame, packed, [0] * _bounded(packed[0], MAX_ROWS), [()], context)
    except _BROKEN as error:
        raise ColumnError(f"a table is broken: {error}") from None


def _bounded(count: Any, most: int) -> int:
    if not isinstance(count, int) or not 0 <= count <= most:
        raise ColumnError("a table claims too many rows")
    return count


class Table:
    """A table whose columns are decoded when they are asked for."""

    def __init__(self, path: str, struct: type, packed: Any, parents: Sequence[int], above: Sequence[Subject], context: _Context) -> None:
        self.struct = struct
        self.path = path
        self.plan = {field.name: field for field in plan_of(struct)}
        self.rows = _bounded(packed[0], context.rows_left)
        context.rows_left -= self.rows
        self._context = context
        self._columns: dict[str, Any] = dict(packed[2])
        if len(parents) != self.rows:
            raise ColumnError("a table has another length than its parent says")
        packed_keys = [self._columns.pop(name) for name in packed[1]] if self.rows else []
        self._keys = {name: self._values(_KEY, key)[0] for name, key in zip(packed[1], packed_keys, strict=False)}
        self.order = context.orders.get(path, parents, above, packed_keys, list(self._keys.values()))

    def column(self, name: str) -> Sequence[Any]:
        """A field's values in the order of rows; structs where the field holds them. Raises ColumnError."""
        return self._read(name, by_row=True)

    def column_by_subject(self, name: str) -> Sequence[Any]:
        """The same in the order of subjects (see `order`), which for counters is the quicker one."""
        return self._read(name, by_row=False)

    def _read(self, name: str, by_row: bool) -> Sequence[Any]:
        field = self.plan[name]
        try:
            values, straight = self._column(field, self._columns.get(name))
        except _BROKEN as error:
            raise ColumnError(f"column {name} is broken: {error}") from None
        if name == "timeslices" and self.plan.keys() >= SWITCHES:
            values, straight = self._with_switches(values if straight else self.order.by_row(values)), True
        if straight == by_row:
            return values
        return self.order.by_row(values) if by_row else self.order.by_subject(values)

    def _column(self, field: FieldPlan, packed: Any) -> tuple[Sequence[Any], bool]:
        """Values, and whether they are in the order of rows."""
        if field.name in self._keys:
            return _typed(field, self._keys[field.name]), True
        if packed is None:
            return self._defaults(field), True
        return (self._nested(field), True) if packed[0] == TABLE else self._values(field, packed)

    def children(self, name: str) -> tuple[list[int], Table] | None:
        """The table below a field, and how many of its rows each row has (-1: None); None where no row has any."""
        packed = self._columns.get(name)
        if packed is None or packed[0] != TABLE:
            return None
        lengths = self._lengths(name, packed[1])
        child = self.plan[name].child
        if child is None:
            raise ColumnError("a table stands where none belongs")
        _bounded(sum(length for length in lengths if length > 0), self._context.rows_left)
        parents = list(chain.from_iterable(map(repeat, self.order.ids, lengths)))
        return lengths, Table(f"{self.path}.{name}", child, packed[2], parents, self.order.subjects, self._context)

    def _with_switches(self, slices: Sequence[Any]) -> Sequence[Any]:
        switches = zip(slices, self.column("vol"), self.column("invol"), strict=True)
        return [count if count is None else count + (vol or 0) + (invol or 0) for count, vol, invol in switches]

    def _lengths(self, name: str, packed: Any) -> list[int]:
        values, straight = self._values(_LENGTH, packed, name)
        return list(values if straight else self.order.by_row(values))

    def _defaults(self, field: FieldPlan) -> Sequence[Any]:
        if field.default is None:
            raise ColumnError("it is missing")
        return [field.default() for _ in range(self.rows)]

    def _nested(self, field: FieldPlan) -> Sequence[Any]:
        below = self.children(field.name)
        lengths, table = below if below else ([], None)
        held = _structs(table) if table else []
        if field.child is ThreadSample:
            held = self._with_main(lengths, held)
        rows = iter(held)
        if field.kind == "one":
            return [next(rows) if length > 0 else None for length in lengths]
        if field.kind == "counts":
            return [{row.bucket: row.count for row in islice(rows, max(0, length))} for length in lengths]
        return [list(islice(rows, length)) if length >= 0 else None for length in lengths]

    def _with_main(self, lengths: list[int], threads: list[ThreadSample]) -> list[ThreadSample]:
        """Main threads that only said that they repeat their process's sample."""
        if not any(thread.timeslices == -1 for thread in threads):
            return threads
        mains = zip(*map(self.column, _MAIN), strict=True)
        owners = chain.from_iterable(repeat(main, length) for main, length in zip(mains, lengths, strict=True))
        return [
            ThreadSample(*main) if thread.timeslices == -1 and thread.tid == main[0] else thread
            for thread, main in zip(threads, owners, strict=True)
        ]

    def _values(self, field: FieldPlan, packed: Any, name: str = "") -> tuple[Sequence[Any], bool]:
        """As `_column`, of what holds no tables."""
        code, *parts = packed
        if code == CONST:
            return [msgspec.convert(parts[0], field.type)] * self.rows, True
        if code == ANY:
            return _typed(field, parts[0], self.rows), True
        if code == RUNNING:
            return self._with_absent(field, parts[0], _sums(parts[1], unpack_integers(parts[2], 1), self._steps(parts[3]), [0])), True
        return self._by_subject(field, code, parts, name or field.name), False

    def _by_subject(self, field: FieldPlan, code: int, parts: list[Any], name: str) -> Sequence[Any]:
        if code == INTS and field.kind == "int":
            return self._with_absent(field, parts[0], self._integers(name, *parts[1:]))
        if code == SCALED and field.kind == "float":
            scale, starts = parts[1], self.order.starts
            whole = _sums(1, unpack_integers(parts[2], len(starts)), self._steps(parts[3]), starts)
            return self._with_absent(field, parts[0], [value / scale for value in whole])
        if code == DOUBLES and field.kind == "float":
            return self._with_absent(field, parts[0], from_planes(array("d"), parts[1], self.rows).tolist())
        if code == WORDS and field.kind == "word":
            words = _typed(field, parts[0])
            return [words[i] for i in unpack_integers(parts[1], self.rows)]
        raise ColumnError("its encoding is not known")

    def _integers(self, name: str, unit: int, bases: bytes, steps: bytes) -> list[int]:
        order, context = self.order, self._context
        first = unpack_integers(bases, len(order.starts))
        before = context.reference.of(self.path, name, order)
        values = _sums(unit, first, self._steps(steps), order.starts, before)
        if context.learnt is not None:
            context.learnt.put(self.path, name, order, values)
        return values

    def _steps(self, data: bytes) -> list[int]:
        return unpack_integers(data, self.rows)

    def _with_absent(self, field: FieldPlan, absent: bytes | None, values: list[Any]) -> Sequence[Any]:
        if absent is None:
            return values
        if not field.nullable or len(absent) != self.rows:
            raise ColumnError("values are absent that must be there")
        return [None if gone else value for gone, value in zip(absent, values, strict=True)]


def _sums(unit: int, bases: list[int], steps: list[int], starts: Sequence[int], before: list[int] | None = None) -> list[int]:
    """Running sums of the steps in ``unit``, beginning anew at each of ``starts`` with its base over what was ``before``."""
    if unit != 1:
        steps, bases = [step * unit for step in steps], [base * unit for base in bases]
    if before is not None:
        bases = [base + last for base, last in zip(bases, before, strict=True)]
    sums = list(accumulate(steps))
    offset = 0
    for start, base in zip(starts, bases, strict=True):
        steps[start] = base - sums[start] - offset
        offset += steps[start]
    return list(accumulate(steps))


def _typed(field: FieldPlan, values: Any, count: int | None = None) -> list[Any]:
    if count is not None and len(values) != count:
        raise ColumnError("a column has another length than its table")
    return list(msgspec.convert(values, list[field.type]))  # type: ignore[name-defined]


def _structs(table: Table) -> list[Any]:
    if not table.rows:
        return []
    return list(map(table.struct, *(table.column(name) for name in table.plan)))
