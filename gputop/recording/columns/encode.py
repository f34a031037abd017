"""Frames to columns."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from contextlib import contextmanager
from itertools import chain
from itertools import compress
from itertools import repeat
from math import gcd
from operator import attrgetter
from operator import floordiv
from operator import sub
from typing import Any

import msgspec
from msgspec.structs import astuple

from gputop.frame import Frame
from gputop.frame import Preempt
from gputop.frame import SchedThread
from gputop.frame import ThreadSample
from gputop.frame import Wakeup
from gputop.recording.columns.layout import ABOVE_NS
from gputop.recording.columns.layout import ANY
from gputop.recording.columns.layout import CLOCKS
from gputop.recording.columns.layout import CONST
from gputop.recording.columns.layout import DOUBLES
from gputop.recording.columns.layout import FEW_VALUES
from gputop.recording.columns.layout import GROWTH
from gputop.recording.columns.layout import KEYS
from gputop.recording.columns.layout import LAST_SCALED
from gputop.recording.columns.layout import LESS
from gputop.recording.columns.layout import MAIN_THREAD
from gputop.recording.columns.layout import RUNNING
from gputop.recording.columns.layout import STEPS
from gputop.recording.columns.layout import SWITCHES
from gputop.recording.columns.layout import TABLE
from gputop.recording.columns.layout import WORDS
from gputop.recording.columns.layout import FieldPlan
from gputop.recording.columns.layout import Order
from gputop.recording.columns.layout import pack_integers
from gputop.recording.columns.layout import peak
from gputop.recording.columns.layout import plans_of
from gputop.recording.columns.layout import to_planes
from gputop.recording.columns.layout import told_less
from gputop.recording.columns.standing import Standing
from gputop.recording.columns.standing import Standings

_SCALES = (1, 10, 100, 1000, 1_000_000)
_MOST = 1e9
MOST_WORDS = 64
_NOTHING: dict[int, int] = {}
_ZEROS = pack_integers([])
_REPEATED = astuple(ThreadSample(0, 0, 0, -1, None, 0, 0))[1:]
Told = Mapping[str, Sequence[Any]]
"""A table's columns."""
SORTED: dict[type | None, Callable[[Any], Any]] = {
    SchedThread: attrgetter("tid"), Preempt: attrgetter("victim_tid", "culprit_tid"), Wakeup: attrgetter("wakee_tid", "waker_tid"),
}  # fmt: skip
"""Lists that come in no order of their own."""


Orders = dict[str, tuple[Any, Order, dict[str, Any]]]
"""Path -> what the order of the block before was made from, that, and the columns of its keys."""


def encode(frames: list[Frame], standings: Standings | None = None, orders: Orders | None = None) -> bytes:
    """The table of some frames, at most `MAX_ROWS` rows of them, told from where ``standings`` stand, which then go on to its end.
    ``orders`` is kept from block to block. OverflowError beyond 64 bits; ``standings`` are then of no more use."""
    encoder = _Encoder({} if standings is None else standings, {} if orders is None else orders)
    with _no_collecting():
        return msgspec.msgpack.encode(encoder.table("", Frame, list(map(astuple, frames)), [0] * len(frames), None))


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Thousands of tuples are made that live for some milliseconds and hold no cycles: looking through them would take as long again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Encoder:
    def __init__(self, standings: Standings, orders: Orders) -> None:
        self.standings = standings
        self.orders = orders

    def standing(self, path: str, name: str) -> Standing:
        """Where a field stands."""
        known = self.standings.get((path, name))
        if known is None:
            known = self.standings[path, name] = Standing()
        return known

    def order(self, path: str, above: Order | None, parents: Sequence[int], keys: dict[str, Sequence[Any]]) -> tuple[Order, dict[str, Any]]:
        """That of the block before, if nothing has changed: mostly the same subjects stand in the same places. And its keys' columns."""
        known = self.orders.get(path)
        if known is None or known[0] != (above, parents, keys):
            order = Order(parents, [()] if above is None else above.subjects, list(keys.values()))
            packed = {name: _running(column, 0) for name, column in keys.items()}
            known = self.orders[path] = (above, parents, keys), order, packed
        return known[1], known[2]

    def table(
        self, path: str, struct: type, rows: list[Any], parents: Sequence[int], above: Order | None, above_ns: Sequence[int] = ()
    ) -> list[Any]:
        """``rows`` are tuples, ``parents`` the number of each one's parent's subject in ``above``, ``above_ns`` its time, if it has one."""
        if not rows:
            return [0, [], {}]
        plan = plans_of(struct)
        told = dict(zip(plan, zip(*rows, strict=True), strict=True))
        columns = {name: _coarse(plan[name], column) for name, column in told.items()}
        if columns.keys() >= SWITCHES:
            columns["timeslices"] = _beyond_switches(columns)
        keys = KEYS.get(struct.__name__, (next(iter(plan)),))
        order, packed_keys = self.order(path, above, parents, {key: columns[key] for key in keys})
        packed = dict(packed_keys)
        for name, field in plan.items():
            column = columns[name]
            if name in CLOCKS:
                packed[name] = _running(column, field.unit)
            elif field.less:
                less = told_less(field, (columns | {ABOVE_NS: [t_ns // (field.unit or 1) for t_ns in above_ns]}).__getitem__)
                packed[name] = self._ints(path, field, tuple(map(sub, column, less)), order, LESS) or [ANY, told[name]]
            elif name not in keys:
                found = self._column(path, field, column, order, told)
                if found is not None:
                    packed[name] = found
        return [len(rows), list(keys), packed]

    def _column(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, told: Told) -> list[Any] | None:
        """None for one that need not be told."""
        first = column[0]
        if first != column[-1] or column.count(first) < len(column):
            return self._varying(path, field, column, order, told)
        if field.child and first:
            return self._children(path, field, column, order, told)
        if field.default is not None and first == field.default():
            return None
        return [CONST, _plain(column[:1], field.unit)[0]]

    def _varying(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, told: Told) -> list[Any]:
        if field.kind == "int" and field.name not in FEW_VALUES:
            return self._ints(path, field, column, order) or [ANY, _plain(column, field.unit)]
        if field.child:
            return self._children(path, field, column, order, told)
        standing = self.standing(path, field.name)
        return standing.as_before(order, column) or standing.keep(order, column, _unrelated(field, column, order))

    def _ints(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, code: int = STEPS) -> list[Any] | None:
        """None beyond 64 bits."""
        standing = self.standing(path, field.name)
        known = standing.as_before(order, column)
        if known is not None:
            return known
        absent, filled, steps = _split(order.by_subject(column), order)
        for start, before in zip(order.starts, standing.of(order), strict=True):
            steps[start] = filled[start] - before
        try:
            packed = [code, absent, *_in_unit(steps, field.unit)]
        except OverflowError:
            return None
        standing.put(order, order.at_ends(filled))
        if packed[-1] == _ZEROS:
            standing.keep(order, column, packed)
        return packed

    def _children(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, told: Told) -> list[Any]:
        assert field.child is not None
        below = f"{path}.{field.name}"
        if field.kind == "counts":
            return _growth(order.by_subject(column), order, self.standing(below, ""))
        if field.kind == "one":
            column = [() if value is None else (value,) for value in column]
        elif field.child in SORTED:
            column = [sorted(value, key=SORTED[field.child]) for value in column]
        lengths = [-1 if value is None else len(value) for value in column]
        held = list(map(astuple, chain.from_iterable(value or () for value in column)))
        parents = list(chain.from_iterable(map(repeat, order.ids, lengths)))
        above_ns = list(chain.from_iterable(map(repeat, told["t_ns"], lengths))) if field.child is SchedThread else ()
        if field.child is ThreadSample:
            _leave_out_main(held, lengths, told)
        same = lengths.count(lengths[0]) == len(lengths)
        packed = [CONST, lengths[0]] if same else self._ints(path, field, lengths, order)
        return [TABLE, packed, self.table(below, field.child, held, parents, order, above_ns)]


def _growth(column: Sequence[dict[int, int]], order: Order, standing: Standing) -> list[Any]:
    """What each row's counts, in order of subjects, have grown by since the subject was told of before."""
    told: list[list[tuple[int, int]]] = []
    lasts = []
    for (start, end), before in zip(order.spans, standing.of(order, _NOTHING), strict=True):
        last = before
        for counts in column[start:end]:
            told.append([] if counts is last else _grown(last, counts))
            last = counts
        lasts.append(last)
    standing.put(order, lasts)
    grown = list(chain.from_iterable(told))
    return [GROWTH, *map(pack_integers, (list(map(len, told)), [bucket for bucket, _ in grown], [count for _, count in grown]))]


def _grown(before: dict[int, int], counts: dict[int, int]) -> list[tuple[int, int]]:
    """(bucket, how much its count grew); all of it where it is no more."""
    if list(counts) == list(before):
        growths = list(map(sub, counts.values(), before.values()))
        return list(compress(zip(counts, growths, strict=True), growths))
    grown = [(bucket, count - before.get(bucket, 0)) for bucket, count in counts.items() if before.get(bucket) != count]
    if counts.keys() >= before.keys():
        return grown
    return grown + [(bucket, -before[bucket]) for bucket in before.keys() - counts.keys()]


def _leave_out_main(threads: list[tuple[Any, ...]], lengths: Sequence[int], told: Told) -> None:
    """Main threads, the first of each process, that repeat its sample become a sign that they do."""
    at = 0
    for main, length in zip(zip(*map(told.__getitem__, MAIN_THREAD), strict=True), lengths, strict=True):
        if length > 0:
            if threads[at] == main:
                threads[at] = main[0], *_REPEATED
            at += length


def _beyond_switches(columns: Told) -> Sequence[Any]:
    """Every time slice ends in a switch, so that these counters run together and only their distance is kept."""
    slices, vol, invol = columns["timeslices"], columns["vol"], columns["invol"]
    try:
        return tuple(map(sub, map(sub, slices, vol), invol))
    except TypeError:
        return tuple(count if count is None else count - (a or 0) - (b or 0) for count, a, b in zip(slices, vol, invol, strict=True))


def _running(column: Sequence[Any], unit: int) -> list[Any]:
    """Of key fields and clocks, whose order is that of the rows; in ``unit`` where that is not 0."""
    try:
        steps = list(map(sub, column, chain(column[:1], column)))
        divisor = unit or gcd(column[0], *steps) or 1
        first = column[0] if unit else column[0] // divisor
        return [RUNNING, None, divisor, pack_integers([first]), pack_integers(steps if unit else [step // divisor for step in steps])]
    except (TypeError, OverflowError):
        return [ANY, _plain(column, unit)]


def _plain(column: Sequence[Any], unit: int) -> Sequence[Any]:
    """A column that is in ``unit``, 0 for none, as it is."""
    return [value and value * unit for value in column] if unit else column


def _unrelated(field: FieldPlan, column: Sequence[Any], order: Order) -> list[Any]:
    """A column that does not build upon the block before."""
    if field.kind == "float":
        return _floats(field, column, order)
    words = _words(column, order) if field.kind == "word" or field.name in FEW_VALUES else None
    return words or [ANY, column]


def _floats(field: FieldPlan, column: Sequence[Any], order: Order) -> list[Any]:
    filled = order.by_subject(column)
    absent, filled = _fill(filled, order.spans) if None in filled else (None, filled)
    for scale in (field.scale,) if field.scale else _SCALES:
        whole = _scaled(filled, scale)
        if whole is not None:
            steps = list(map(sub, whole, chain((0,), whole)))
            for start in order.starts:
                steps[start] = 0
            return [LAST_SCALED, absent, scale, pack_integers(order.at_ends(whole)), pack_integers(steps)]
    return [DOUBLES, absent, to_planes(array("d", filled))]


def _scaled(column: Sequence[float], scale: int) -> list[int] | None:
    """``column`` times ``scale`` where that is a column of (not too large) whole numbers and can be undone."""
    if not all(map(_MOST.__gt__, map(abs, column))) or round(column[-1] * scale) / scale != column[-1]:
        return None
    whole = [round(value * scale) for value in column]
    return whole if [number / scale for number in whole] == list(column) else None


def _words(column: Sequence[Any], order: Order) -> list[Any] | None:
    """None for too many different ones."""
    words = dict.fromkeys(column)
    if len(words) > MOST_WORDS:
        return None
    numbers = dict(zip(words, range(len(words)), strict=True))
    return [WORDS, list(words), pack_integers(list(map(numbers.__getitem__, order.by_subject(column))))]


def _coarse(field: FieldPlan, column: tuple[Any, ...]) -> Sequence[Any]:
    """``column`` with the precision that a recording keeps; where the field has a unit, as multiples of that."""
    if field.unit:
        try:
            return tuple(map(floordiv, column, repeat(field.unit)))
        except TypeError:
            return tuple([value if value is None else value // field.unit for value in column])
    if field.peak:
        return tuple([value and peak(value, field.peak) for value in column])
    if field.scale:
        return tuple([value and round(value * field.scale) / field.scale for value in column])
    return column


def _fill(column: Sequence[Any], spans: Iterable[tuple[int, int]]) -> tuple[bytes, Sequence[Any]]:
    """Where values are absent, and the column with the value before in the same span, or its first one, or 0 in their places."""
    absent = bytes([value is None for value in column])
    last: Any = 0
    filled = [last := last if value is None else value for value in column]
    for start, end in spans:
        if absent[start]:
            first = absent.find(0, start, end)
            filled[start : first if first >= 0 else end] = [column[first]] * (first - start) if first >= 0 else [0] * (end - start)
    return absent, filled


def _split(column: Sequence[Any], order: Order) -> tuple[bytes | None, Sequence[int], list[int]]:
    """Of a column by subject: where values are absent, all values, and the step to each row from the one before."""
    try:
        return None, column, list(map(sub, column, chain((0,), column)))
    except TypeError:
        absent, filled = _fill(column, order.spans)
        return absent, filled, list(map(sub, filled, chain((0,), filled)))


def _in_unit(steps: list[int], unit: int) -> tuple[int, bytes]:
    """Steps that are in ``unit``; where that is 0 in the largest one that divides all. OverflowError beyond 64 bits."""
    if not unit:
        unit = gcd(*steps) or 1
        if unit > 1:
            steps = [step // unit for step in steps]
    return unit, pack_integers(steps)
