"""Columns to frames, or to the few columns that are asked for.

What is read may be damaged or made up by an enemy: rows are counted before they are made, and every value has the type that
its field declares.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from itertools import chain
from itertools import islice
from itertools import repeat
from operator import add
from typing import Any

import msgspec

from gputop.frame import Frame
from gputop.frame import ThreadSample
from gputop.recording.columns.context import Before
from gputop.recording.columns.context import Context
from gputop.recording.columns.context import Layout
from gputop.recording.columns.context import Layouts
from gputop.recording.columns.context import bounded
from gputop.recording.columns.layout import ABOVE_NS
from gputop.recording.columns.layout import ANY
from gputop.recording.columns.layout import CHANGES
from gputop.recording.columns.layout import CONST
from gputop.recording.columns.layout import DOUBLES
from gputop.recording.columns.layout import GROWTH
from gputop.recording.columns.layout import INTS
from gputop.recording.columns.layout import LAST_INTS
from gputop.recording.columns.layout import LAST_SCALED
from gputop.recording.columns.layout import LESS
from gputop.recording.columns.layout import MAIN_THREAD
from gputop.recording.columns.layout import MAX_ROWS
from gputop.recording.columns.layout import RUNNING
from gputop.recording.columns.layout import SCALED
from gputop.recording.columns.layout import STEPS
from gputop.recording.columns.layout import SWITCHES
from gputop.recording.columns.layout import TABLE
from gputop.recording.columns.layout import WORDS
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.layout import FieldPlan
from gputop.recording.columns.layout import Order
from gputop.recording.columns.layout import from_planes
from gputop.recording.columns.layout import plans_of
from gputop.recording.columns.layout import told_less
from gputop.recording.columns.layout import unpack_integers
from gputop.recording.columns.standing import Standing
from gputop.recording.columns.sums import onward
from gputop.recording.columns.sums import per_subject
from gputop.recording.columns.sums import sums
from gputop.recording.columns.sums import times
from gputop.recording.columns.sums import with_changes
from gputop.recording.columns.sums import with_growth
from gputop.recording.columns.sums import with_switches

_BROKEN = (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError, ZeroDivisionError, RecursionError)
_TABLES = (TABLE, CHANGES)
_STEPS = (STEPS, LESS)
_INTS = (INTS, LAST_INTS, *_STEPS)
MOST_COUNTS = 4_000_000
"""In all rows of a column of counts."""
_KEY = FieldPlan("", "int", Any, True, None)
_LENGTH = FieldPlan("", "int", int, False, None)


def open_table(payload: bytes, before: Before | None = None, layouts: Layouts | None = None, previous: Table | None = None) -> Table:
    """A table of frames; ``layouts`` is kept from block to block by who reads many. Raises ColumnError."""
    try:
        return Table(Frame, msgspec.msgpack.decode(payload), Context(before or (lambda *_: Standing()), layouts or Layouts(), previous))
    except (*_BROKEN, msgspec.MsgspecError) as error:
        raise ColumnError(f"a table is broken: {error}") from None


class Table:
    """A table whose columns are decoded when they are asked for."""

    def __init__(
        self, struct: type, packed: Any, context: Context, above: Table | None = None, name: str = "", lengths: Any = None
    ) -> None:
        """``above`` is the table whose rows hold these in their field ``name``, ``lengths`` the packed column that says how many."""
        self.struct = struct
        self.path: str = f"{above.path}.{name}" if above is not None else ""
        self.plan = plans_of(struct)
        self.rows = bounded(packed[0], context.rows_left)
        context.rows_left -= self.rows
        self._context = context
        self._columns: dict[str, Any] = dict(packed[2])
        self._above_ns = above.column("t_ns") if above is not None and _needs_time(self.plan) else ()
        self._below: dict[str, Table] = {}
        self._at_paths: dict[str, Table | None] = {}
        self._known_lasts: dict[str, list[int]] = {}
        self._known_counts: dict[str, list[dict[int, int]]] = {}
        packed_keys = [self._columns.pop(name) for name in packed[1]] if self.rows else []
        parent, counts = (above.layout, above.lengths(name, lengths)) if above is not None else (None, [])
        self.layout: Layout = context.layouts.get(
            self.path, (parent, counts, self.rows, packed[1], packed_keys), lambda: self._lay_out(above, counts, packed[1], packed_keys)
        )

    @property
    def order(self) -> Order:
        """Its rows by subject."""
        return self.layout.order

    def _lay_out(self, above: Table | None, lengths: list[int], names: list[str], packed_keys: list[Any]) -> Layout:
        parents = [0] * self.rows if above is None else list(chain.from_iterable(map(repeat, above.order.ids, lengths)))
        if len(parents) != self.rows:
            raise ColumnError("a table has another length than its parent says")
        keys = {name: self._values(_KEY, key)[0] for name, key in zip(names, packed_keys, strict=False)}
        return Layout(Order(parents, [()] if above is None else above.order.subjects, list(keys.values())), keys, lengths)

    def column(self, name: str) -> Sequence[Any]:
        """A field's values in the order of rows; structs where the field holds them. Raises ColumnError."""
        return self._read(name, by_row=True)

    def column_by_subject(self, name: str) -> Sequence[Any]:
        """The same in the order of subjects (see `order`), which for counters is the quicker one."""
        return self._read(name, by_row=False)

    def at_last(self, name: str) -> Sequence[Any]:
        """A field's value in the last row of each subject; the quickest, for the steps there need not be read."""
        field, packed = self.plan[name], self._columns.get(name)
        try:
            values = self._at_last(field, packed)
            if packed is not None and packed[0] == LESS:
                return list(map(add, values, told_less(field, partial(self._other, self.at_last, field.unit))))
        except _BROKEN as error:
            raise ColumnError(f"column {name} is broken: {error}") from None
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

    def last_told(self, name: str) -> list[tuple[int, Any]]:
        """Of each subject, the last row (in order of subjects) in which a field is there, and its value; (-1, None) where it is not."""
        field, packed = self.plan[name], self._columns.get(name)
        if packed is not None and packed[0] in (LAST_INTS, LAST_SCALED, *_STEPS):
            absent = packed[1]
            rows = [end - 1 if absent is None else absent.rfind(0, start, end) for start, end in self.order.spans]
            values = self._at_last(field, [packed[0], None, *packed[2:]])
            return [(row, value) if row >= 0 else (-1, None) for row, value in zip(rows, values, strict=True)]
        column = self.column_by_subject(name)
        told = (range(end - 1, start - 1, -1) for start, end in self.order.spans)
        return [next(((row, column[row]) for row in rows if column[row] is not None), (-1, None)) for rows in told]

    def steps(self, name: str) -> tuple[list[int], list[int], list[int]] | None:
        """Of a counter that is there in every row: each subject's first and last value, and how each row (in order of subjects) differs
        from the one before, whatever at a subject's first. None where it is not kept so."""
        packed = self._columns.get(name)
        if packed is None or packed[0] not in (LAST_INTS, STEPS) or packed[1] is not None or name == "timeslices":
            return None
        try:
            lasts, steps = self._lasts(name, packed), times(packed[2], self._steps(packed[-1]))
            spans = zip(lasts, self.order.spans, strict=True)
            return [last - sum(steps[start + 1 : end]) for last, (start, end) in spans], lasts, steps
        except _BROKEN as error:
            raise ColumnError(f"column {name} is broken: {error}") from None

    def tells(self, name: str) -> bool:
        """Whether a field that may be absent is there in any row."""
        packed = self._columns.get(name)
        return packed is not None and packed != [CONST, None]

    def _at_last(self, field: FieldPlan, packed: Any) -> Sequence[Any]:
        ends = self.order.ends
        if field.name in self.layout.keys:
            return list(map(self.layout.keys[field.name].__getitem__, self.order.last_rows))
        if packed is None:
            return self._defaults(field, len(ends))
        code, parts = packed[0], packed[1:]
        if code == CONST:
            return [msgspec.convert(parts[0], field.type)] * len(ends)
        if code in (LAST_INTS, *_STEPS) and field.kind == "int":
            return self._present(parts[0], self._lasts(field.name, packed))
        if code == GROWTH and field.kind == "counts":
            return self._grown_lasts(field.name, parts)
        if code == LAST_SCALED and field.kind == "float":
            return self._present(parts[0], [value / parts[1] for value in unpack_integers(parts[2], len(ends))])
        if code == WORDS and field.kind in ("word", "int"):
            words, indices = _typed(field, parts[0]), unpack_integers(parts[1], self.rows)
            return [words[index] for index in self.order.at_ends(indices)]
        values, straight = self._column(field, packed)
        return self.order.at_ends(self.order.by_subject(values) if straight else values)

    def _present(self, absent: bytes | None, values: Sequence[Any]) -> Sequence[Any]:
        """``values``, one per subject, where the subject's last row has one."""
        if absent is None:
            return values
        return [None if absent[end - 1] else value for end, value in zip(self.order.ends, values, strict=True)]

    def _read(self, name: str, by_row: bool) -> Sequence[Any]:
        field, packed = self.plan[name], self._columns.get(name)
        try:
            values, straight = self._column(field, packed)
            if packed is not None and packed[0] == LESS:
                less = told_less(field, partial(self._other, self.column, field.unit))
                values, straight = list(map(add, self.order.by_row(values), less)), True
        except _BROKEN as error:
            raise ColumnError(f"column {name} is broken: {error}") from None
        if name == "timeslices" and self.plan.keys() >= SWITCHES:
            values = with_switches(values if straight else self.order.by_row(values), self.column("vol"), self.column("invol"))
            straight = True
        if straight == by_row:
            return values
        return self.order.by_row(values) if by_row else self.order.by_subject(values)

    def _column(self, field: FieldPlan, packed: Any) -> tuple[Sequence[Any], bool]:
        """Values, and whether they are in the order of rows."""
        if field.name in self.layout.keys:
            return _typed(field, self.layout.keys[field.name]), True
        if packed is None:
            return self._defaults(field, self.rows), True
        return (self._nested(field, packed[0]), True) if packed[0] in _TABLES else self._values(field, packed)

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
            below = self._below[name] = Table(child, packed[2], self._context, self, name, packed[1])
        return below.layout.lengths, below

    def leave(self, path: str, name: str, standing: Standing) -> None:
        """Take ``standing``, which is of a field below here, to where it stands after this table. Raises ColumnError."""
        above, _, field = path.rpartition(".") if not name else (path, "", name)
        table = self._at(above)
        packed = table._columns.get(field) if table is not None else None
        if table is None or packed is None:
            return
        try:
            lasts = table._left(field, packed) if name else table._counts_left(field, packed)
        except _BROKEN as error:
            raise ColumnError(f"column {field} is broken: {error}") from None
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

    def _left(self, name: str, packed: Any) -> Sequence[int] | None:
        """Each subject's last value in a column of integers."""
        told = packed[1] if packed[0] in _TABLES else packed
        return self._lasts(name, told) if told[0] in _INTS else None

    def _counts_left(self, name: str, packed: Any) -> Sequence[dict[int, int]] | None:
        """The same of a column of counts."""
        return self._grown_lasts(name, packed[1:]) if packed[0] == GROWTH else None

    def lengths(self, name: str, packed: Any) -> list[int]:
        """How many rows of the table below a field each row has."""
        made_from = self.order, packed, self._before(name)
        return self._context.layouts.get(f"{self.path}.{name} lengths", made_from, lambda: self._lengths(name, packed))

    def _lengths(self, name: str, packed: Any) -> list[int]:
        values, straight = self._values(_LENGTH, packed, name)
        lengths = list(values if straight else self.order.by_row(values))
        bounded(sum(map(max, lengths, repeat(0))), MAX_ROWS)
        return lengths

    def _defaults(self, field: FieldPlan, count: int) -> Sequence[Any]:
        if field.default is None:
            raise ColumnError("it is missing")
        return [field.default() for _ in range(count)]

    def _nested(self, field: FieldPlan, code: int) -> Sequence[Any]:
        below = self.children(field.name)
        lengths, table = below if below else ([], None)
        if field.kind == "counts" and table:
            entries = zip(table.column("bucket"), table.column("count"), strict=True) if table.rows else iter(())
            told = [dict(islice(entries, max(0, length))) for length in lengths]
            return with_changes(told, self.order) if code == CHANGES else told
        held = structs(table) if table else []
        if field.child is ThreadSample:
            held = self._with_main(lengths, held)
        rows = iter(held)
        if field.kind == "one":
            return [next(rows) if length > 0 else None for length in lengths]
        return [list(islice(rows, length)) if length >= 0 else None for length in lengths]

    def _with_main(self, lengths: list[int], threads: list[ThreadSample]) -> list[ThreadSample]:
        """Main threads that only said that they repeat their process's sample."""
        if not any(thread.timeslices == -1 for thread in threads):
            return threads
        mains = zip(*map(self.column, MAIN_THREAD), strict=True)
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
            return self._with_absent(field, parts[0], self._running(*parts[1:])), True
        return self._by_subject(field, code, parts, name or field.name), False

    def _running(self, unit: int, first: bytes, steps: bytes) -> list[int]:
        return sums(times(unit, unpack_integers(first, 1)), times(unit, self._steps(steps)), [(0, self.rows)], from_last=False)

    def _by_subject(self, field: FieldPlan, code: int, parts: list[Any], name: str) -> Sequence[Any]:
        if code in _INTS and field.kind == "int":
            return self._with_absent(field, parts[0], self._integers(name, code, *parts[1:]))
        if code in (SCALED, LAST_SCALED) and field.kind == "float":
            scale, anchors = parts[1], unpack_integers(parts[2], len(self.order.starts))
            whole = sums(anchors, self._steps(parts[3]), self.order.spans, code == LAST_SCALED)
            return self._with_absent(field, parts[0], [value / scale for value in whole])
        if code == GROWTH and field.kind == "counts":
            return self._grown(name, parts)
        if code == DOUBLES and field.kind == "float":
            return self._with_absent(field, parts[0], from_planes(array("d"), parts[1], self.rows).tolist())
        if code == WORDS and field.kind in ("word", "int"):
            words = _typed(field, parts[0])
            return [words[i] for i in unpack_integers(parts[1], self.rows)]
        raise ColumnError("its encoding is not known")

    def _grown(self, name: str, packed: Sequence[bytes]) -> list[dict[int, int]]:
        lengths, grown = self._growth(packed)
        out: list[dict[int, int]] = []
        left = MOST_COUNTS
        for (start, end), known in zip(self.order.spans, self._grown_before(name), strict=True):
            counts = known
            for length in lengths[start:end]:
                if length:
                    counts = with_growth(counts, list(islice(grown, length)))
                    left = bounded(left - len(counts), left)
                out.append(counts)
        return out

    def _grown_lasts(self, name: str, packed: Sequence[bytes]) -> list[dict[int, int]]:
        """Each subject's last value in a column of counts: all that it has grown by at once."""
        lasts = self._known_counts.get(name)
        if lasts is None:
            lengths, grown = self._growth(packed)
            before = zip(self.order.spans, self._grown_before(name), strict=True)
            lasts = [with_growth(known, list(islice(grown, sum(lengths[start:end])))) for (start, end), known in before]
            bounded(sum(map(len, lasts)), MOST_COUNTS)
            self._known_counts[name] = lasts
        return lasts

    def _growth(self, packed: Sequence[bytes]) -> tuple[list[int], Iterator[tuple[int, int]]]:
        """How many buckets have grown in each row, and all of these with by how much."""
        lengths = unpack_integers(packed[0], self.rows)
        count = bounded(sum(lengths), self._context.rows_left)
        return lengths, zip(unpack_integers(packed[1], count), unpack_integers(packed[2], count), strict=True)

    def _grown_before(self, name: str) -> Sequence[dict[int, int]]:
        return self._context.before(f"{self.path}.{name}", "").of(self.order, {})

    def _integers(self, name: str, code: int, unit: int, *packed: bytes) -> list[int]:
        steps = times(unit, self._steps(packed[-1]))
        if code not in _STEPS:
            return sums(self._anchors(name, unit, packed[0]), steps, self.order.spans, code == LAST_INTS)
        return onward(self._before(name), steps, self.order)

    def _lasts(self, name: str, packed: Any) -> list[int]:
        """Each subject's last value in a column of integers."""
        lasts = self._known_lasts.get(name)
        if lasts is None:
            code, _, unit, *rest = packed
            if code == LAST_INTS:
                lasts = self._anchors(name, unit, rest[0])
            elif code in _STEPS:
                grown = per_subject(self._steps(rest[-1]), self.order) if rest[-1] != b"\0" else repeat(0)
                lasts = [before + unit * steps for before, steps in zip(self._before(name), grown, strict=False)]
            else:
                values = self._integers(name, code, unit, *rest)
                lasts = self.order.at_ends(values)
            self._known_lasts[name] = lasts
        return lasts

    def _before(self, name: str) -> Sequence[int]:
        """Where each subject stood before this table: mostly, where it ended in the block before."""
        above: Table | None = self._context.previous
        before = above._at(self.path) if above is not None else None
        if before is not None and before.order is self.order and name in before._known_lasts:
            return before._known_lasts[name]
        return self._context.before(self.path, name).of(self.order)

    def _anchors(self, name: str, unit: int, anchors: bytes) -> list[int]:
        """Of a column of integers, each subject's known value."""
        before = self._before(name)
        if anchors == b"\0":
            return list(before)
        return list(map(add, times(unit, unpack_integers(anchors, len(self.order.starts))), before))

    def _steps(self, data: bytes) -> list[int]:
        return unpack_integers(data, self.rows)

    def _with_absent(self, field: FieldPlan, absent: bytes | None, values: list[Any]) -> Sequence[Any]:
        if absent is None:
            return values
        if not field.nullable or len(absent) != self.rows:
            raise ColumnError("values are absent that must be there")
        return [None if gone else value for gone, value in zip(absent, values, strict=True)]


def _needs_time(plan: dict[str, FieldPlan]) -> bool:
    return any(ABOVE_NS in field.less for field in plan.values())


def _typed(field: FieldPlan, values: Any, count: int | None = None) -> list[Any]:
    if count is not None and len(values) != count:
        raise ColumnError("a column has another length than its table")
    return list(msgspec.convert(values, list[field.type]))  # type: ignore[name-defined]


def structs(table: Table) -> list[Any]:
    """All rows of a table, as its structs. Raises ColumnError."""
    if not table.rows:
        return []
    return list(map(table.struct, *(table.column(name) for name in table.plan)))
