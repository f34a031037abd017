"""Frames to columns."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from itertools import chain
from itertools import repeat
from math import gcd
from operator import attrgetter
from operator import sub
from typing import Any

import msgspec

from gputop.frame import Frame
from gputop.frame import Preempt
from gputop.frame import ProcSample
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
from gputop.recording.columns.layout import LAST_INTS
from gputop.recording.columns.layout import LAST_SCALED
from gputop.recording.columns.layout import LESS
from gputop.recording.columns.layout import RUNNING
from gputop.recording.columns.layout import SWITCHES
from gputop.recording.columns.layout import TABLE
from gputop.recording.columns.layout import WORDS
from gputop.recording.columns.layout import FieldPlan
from gputop.recording.columns.layout import Order
from gputop.recording.columns.layout import pack_integers
from gputop.recording.columns.layout import peak
from gputop.recording.columns.layout import plan_of
from gputop.recording.columns.layout import to_planes
from gputop.recording.columns.layout import told_less
from gputop.recording.columns.standing import Standing
from gputop.recording.columns.standing import Standings

_SCALES = (1, 10, 100, 1000, 1_000_000)
MOST_WORDS = 64
_NOTHING: dict[int, int] = {}
SORTED: dict[type | None, Callable[[Any], Any]] = {
    SchedThread: attrgetter("tid"), Preempt: attrgetter("victim_tid", "culprit_tid"), Wakeup: attrgetter("wakee_tid", "waker_tid"),
}  # fmt: skip
"""Lists that come in no order of their own."""


Orders = dict[str, tuple[Any, Order]]
"""Path -> what the order of the block before was made from, and that."""


def encode(frames: list[Frame], standings: Standings | None = None, orders: Orders | None = None) -> bytes:
    """The table of some frames, at most `MAX_ROWS` rows of them, told from where ``standings`` stand, which then go on to its end.
    ``orders`` is kept from block to block. OverflowError beyond 64 bits; ``standings`` are then of no more use."""
    encoder = _Encoder({} if standings is None else standings, {} if orders is None else orders)
    return msgspec.msgpack.encode(encoder.table("", Frame, frames, [0] * len(frames), None))


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

    def order(self, path: str, above: Order | None, parents: Sequence[int], keys: list[Sequence[Any]]) -> Order:
        """That of the block before, if nothing has changed: mostly the same subjects stand in the same places."""
        known = self.orders.get(path)
        if known is None or known[0] != (above, parents, keys):
            order = Order(parents, [()] if above is None else above.subjects, keys)
            known = self.orders[path] = (above, parents, keys), order
        return known[1]

    def table(
        self, path: str, struct: type, rows: Sequence[Any], parents: Sequence[int], above: Order | None, above_ns: Sequence[int] = ()
    ) -> list[Any]:
        """``parents`` is the number of each row's parent's subject in ``above``, ``above_ns`` that parent's time, where it has one."""
        if not rows:
            return [0, [], {}]
        plan = plan_of(struct)
        values = zip(*map(msgspec.structs.astuple, rows), strict=True)
        columns = {field.name: _coarse(field, column) for field, column in zip(plan, values, strict=True)}
        if columns.keys() >= SWITCHES:
            columns["timeslices"] = _beyond_switches(columns)
        keys = KEYS.get(struct.__name__, (plan[0].name,))
        order = self.order(path, above, parents, [columns[key] for key in keys])
        packed = {}
        for field in plan:
            column = columns[field.name]
            if field.name in keys or field.name in CLOCKS:
                packed[field.name] = _running(field, column)
            elif field.less:
                less = told_less(field, (columns | {ABOVE_NS: above_ns}).__getitem__)
                packed[field.name] = self._ints(path, field.name, list(map(sub, column, less)), order, LESS) or [ANY, column]
            elif column.count(column[0]) < len(column):
                packed[field.name] = self._column(path, field, column, order, rows)
            elif field.child and column[0]:
                packed[field.name] = self._children(path, field, column, order, rows)
            elif field.default is None or column[0] != field.default():
                packed[field.name] = [CONST, column[0]]
        return [len(rows), list(keys), packed]

    def _column(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, rows: Sequence[Any]) -> list[Any]:
        if field.name in FEW_VALUES and len(set(column)) <= MOST_WORDS:
            return _words(column, order)
        if field.kind == "int":
            return self._ints(path, field.name, column, order) or [ANY, column]
        if field.kind == "float":
            return _floats(column, order)
        if field.kind == "word":
            return _words(column, order)
        return self._children(path, field, column, order, rows) if field.child else [ANY, column]

    def _ints(self, path: str, name: str, column: Sequence[Any], order: Order, code: int = LAST_INTS) -> list[Any] | None:
        """None beyond 64 bits."""
        absent, filled = _fill(order.by_subject(column), order.spans)
        lasts, steps = _split(filled, order)
        standing = self.standing(path, name)
        packed = _whole(code, absent, list(map(sub, lasts, standing.of(order))), steps)
        if packed is not None:
            standing.put(order, lasts)
        return packed

    def _children(self, path: str, field: FieldPlan, column: Sequence[Any], order: Order, rows: Sequence[Any]) -> list[Any]:
        assert field.child is not None
        below = f"{path}.{field.name}"
        if field.kind == "counts":
            return _growth(order.by_subject(column), order, self.standing(below, ""))
        if field.kind == "one":
            column = [() if value is None else (value,) for value in column]
        elif field.child in SORTED:
            column = [sorted(value, key=SORTED[field.child]) for value in column]
        lengths = [-1 if value is None else len(value) for value in column]
        held = list(chain.from_iterable(value or () for value in column))
        parents = list(chain.from_iterable(map(repeat, order.ids, lengths)))
        above_ns = list(chain.from_iterable(map(repeat, (row.t_ns for row in rows), lengths))) if field.child is SchedThread else ()
        if field.child is ThreadSample:
            held = _without_main(rows, held)
        same = lengths.count(lengths[0]) == len(lengths)
        packed = [CONST, lengths[0]] if same else self._ints(path, field.name, lengths, order)
        return [TABLE, packed, self.table(below, field.child, held, parents, order, above_ns)]


def main_thread(proc: ProcSample) -> tuple[Any, ...]:
    """What a process's own sample says of its main thread, as the fields of a ThreadSample."""
    return (proc.pid, proc.oncpu_ns, proc.run_delay_ns, proc.timeslices, proc.state, proc.vol, proc.invol)


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
    grown = [(bucket, count - before.get(bucket, 0)) for bucket, count in sorted(counts.items() - before.items())]
    if counts.keys() >= before.keys():
        return grown
    return grown + [(bucket, -before[bucket]) for bucket in before.keys() - counts.keys()]


def _without_main(procs: Sequence[ProcSample], threads: list[ThreadSample]) -> list[ThreadSample]:
    """Main threads that repeat their process's sample become a sign that they do."""
    mains = {id(proc.threads[0]) for proc in procs if proc.threads and msgspec.structs.astuple(proc.threads[0]) == main_thread(proc)}
    return [ThreadSample(thread.tid, 0, 0, -1) if id(thread) in mains else thread for thread in threads]


def _beyond_switches(columns: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """Every time slice ends in a switch, so that these counters run together and only their distance is kept."""
    slices = zip(columns["timeslices"], columns["vol"], columns["invol"], strict=True)
    return tuple(count if count is None else count - (vol or 0) - (invol or 0) for count, vol, invol in slices)


def _running(field: FieldPlan, column: Sequence[Any]) -> list[Any]:
    """Of key fields and clocks, whose order is that of the rows."""
    if field.kind != "int":
        return [ANY, column]
    absent, filled = _fill(column, [(0, len(column))])
    steps = list(map(sub, filled, chain((filled[0],), filled)))
    return _whole(RUNNING, absent, [filled[0]], steps) or [ANY, column]


def _floats(column: Sequence[Any], order: Order) -> list[Any]:
    absent, filled = _fill(order.by_subject(column), order.spans)
    for scale in _SCALES:
        whole = _scaled(filled, scale)
        if whole is not None:
            lasts, steps = _split(whole, order)
            return [LAST_SCALED, absent, scale, pack_integers(lasts), pack_integers(steps)]
    return [DOUBLES, absent, to_planes(array("d", filled))]


def _scaled(column: Sequence[float], scale: int) -> list[int] | None:
    """``column`` times ``scale`` where that is a column of (not too large) whole numbers and can be undone."""
    if not all(-1e9 < value < 1e9 for value in column):
        return None
    whole = [round(value * scale) for value in column]
    return whole if all(number / scale == value for number, value in zip(whole, column, strict=True)) else None


def _words(column: Sequence[Any], order: Order) -> list[Any]:
    numbers: dict[Any, int] = {}
    indices = [numbers.setdefault(value, len(numbers)) for value in column]
    return [WORDS, list(numbers), pack_integers(order.by_subject(indices))]


def _coarse(field: FieldPlan, column: tuple[Any, ...]) -> tuple[Any, ...]:
    """``column`` with the precision that a recording keeps."""
    if field.unit:
        unit = field.unit
        return tuple([value and value - value % unit for value in column])
    if field.peak:
        return tuple([value and peak(value, field.peak) for value in column])
    if field.scale:
        return tuple([value and round(value * field.scale) / field.scale for value in column])
    return column


def _fill(column: Sequence[Any], spans: Iterable[tuple[int, int]]) -> tuple[bytes | None, Sequence[Any]]:
    """Where values are absent, and the column with the value before in the same span, or its first one, or 0 in their places."""
    if None not in column:
        return None, column
    absent = bytes([value is None for value in column])
    last: Any = 0
    filled = [last := last if value is None else value for value in column]
    for start, end in spans:
        if absent[start]:
            first = absent.find(0, start, end)
            filled[start : first if first >= 0 else end] = [column[first]] * (first - start) if first >= 0 else [0] * (end - start)
    return absent, filled


def _split(column: Sequence[int], order: Order) -> tuple[list[int], list[int]]:
    """Where each subject ends, and the step to each row from the one before."""
    steps = list(map(sub, column, chain((0,), column)))
    for start in order.starts:
        steps[start] = 0
    return [column[end - 1] for end in order.ends], steps


def _whole(code: int, absent: bytes | None, anchors: list[int], steps: list[int]) -> list[Any] | None:
    """The column in the largest unit that divides all; None beyond 64 bits."""
    unit = gcd(*anchors, *steps) or 1
    if unit > 1:
        anchors, steps = [anchor // unit for anchor in anchors], [step // unit for step in steps]
    try:
        return [code, absent, unit, pack_integers(anchors), pack_integers(steps)]
    except OverflowError:
        return None
