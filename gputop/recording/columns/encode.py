"""Frames to columns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, compress, repeat
from operator import itemgetter, sub
from typing import Any

import msgspec
from msgspec.structs import astuple

from gputop.model.frame import Frame, Preempt, SchedThread, ThreadSample, Wakeup
from gputop.recording.columns.column import coarse, growth, integers, plain, running, unrelated
from gputop.recording.columns.layout import (
    ABOVE_NS,
    ANY,
    CLOCKS,
    CONST,
    FEW_VALUES,
    KEYS,
    LESS,
    MAIN_THREAD,
    STEPS,
    SWITCHES,
    TABLE,
    ZEROS,
    FieldPlan,
    Order,
    plans_of,
    told_less,
)
from gputop.recording.columns.standing import Standings, TableStanding

_REPEATED = astuple(ThreadSample(0, 0, 0, -1, None, 0, 0))[1:]
_OWN = _REPEATED[len(MAIN_THREAD) - 1 :]
"""What a thread's sample has beyond its process's, where it has nothing of its own."""
Told = Mapping[str, Sequence[Any]]
"""A table's columns."""
SORTED: dict[type | None, Callable[[Any], Any]] = {SchedThread: itemgetter(0), Preempt: itemgetter(0, 1), Wakeup: itemgetter(0, 1)}
"""Lists that come in no order of their own, and the fields by which they are put in one."""


Orders = dict[str, list[tuple[Any, Order, dict[str, Any]]]]
"""Path -> what the orders of the latest blocks were made from, these, and the columns of their keys; the last one first."""
KEPT_ORDERS = 8
"""Those who are read in every third second come and go, and a crowd is read five times in two seconds."""


def encode(frames: list[Frame], standings: Standings | None = None, orders: Orders | None = None) -> bytes:
    """The table of some frames, told from where ``standings`` stand, which then go on to its end.
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

    def standing(self, path: str, plan: Mapping[str, FieldPlan], order: Order) -> TableStanding:
        """Where the table at a path stands, of the subjects of an order."""
        known = self.standings.get(path)
        if known is None:
            known = self.standings[path] = TableStanding(plan)
        known.move(order)
        return known

    def order(self, path: str, above: Order | None, parents: Sequence[int], keys: dict[str, Sequence[Any]]) -> tuple[Order, dict[str, Any]]:
        """That of a block before, if nothing has changed: mostly the same subjects stand in the same places. And its keys' columns."""
        kept, source = self.orders.setdefault(path, []), (above, parents, keys)
        place = next((place for place, known in enumerate(kept) if known[0] == source), -1)
        if place >= 0:
            known = kept.pop(place)
        else:
            order = Order(parents, [()] if above is None else above.subjects, list(keys.values()))
            known = source, order, {name: running(column, 1) for name, column in keys.items()}
        kept.insert(0, known)
        del kept[KEPT_ORDERS:]
        return known[1], known[2]

    def table(
        self, path: str, struct: type, rows: list[Any], parents: Sequence[int], above: Order | None, above_ns: Sequence[int] = ()
    ) -> list[Any]:
        """``rows`` are tuples, ``parents`` the number of each one's parent's subject in ``above``, ``above_ns`` its time, if it has one."""
        if not rows:
            return [0, [], {}]
        plan = plans_of(struct)
        told = dict(zip(plan, zip(*rows, strict=True), strict=True))
        columns = told | {name: coarse(field, told[name]) for name, field in plan.items() if field.unit or field.peak}
        if columns.keys() >= SWITCHES:
            columns["timeslices"] = _beyond_switches(columns)
        keys = KEYS.get(struct.__name__, (next(iter(plan)),))
        order, packed_keys = self.order(path, above, parents, {key: columns[key] for key in keys})
        standing = self.standing(path, plan, order)
        packed = dict(packed_keys)
        for name, field in plan.items():
            column = columns[name]
            if name in CLOCKS:
                packed[name] = running(column, field.step)
            elif field.less:
                if ABOVE_NS in field.less:
                    columns[ABOVE_NS] = [t_ns // field.unit for t_ns in above_ns]
                less = told_less(field, columns.__getitem__)
                packed[name] = _integers(field, tuple(map(sub, column, less)), standing, LESS) or [ANY, told[name]]
            elif name not in keys:
                found = self._column(path, field, column, standing, told)
                if found is not None:
                    packed[name] = found
        return [len(rows), list(keys), packed]

    def _column(self, path: str, field: FieldPlan, column: Sequence[Any], standing: TableStanding, told: Told) -> list[Any] | None:
        """None for one that need not be told."""
        first = column[0]
        if first != column[-1] or column.count(first) < len(column):
            return self._varying(path, field, column, standing, told)
        if field.child and first:
            return self._children(path, field, column, standing, told)
        if field.default is not None and first == field.default():
            return None
        return [CONST, plain(field, column[:1])[0]]

    def _varying(self, path: str, field: FieldPlan, column: Sequence[Any], standing: TableStanding, told: Told) -> list[Any]:
        if field.kind == "int" and field.name not in FEW_VALUES:
            return _integers(field, column, standing) or [ANY, plain(field, column)]
        if field.child:
            return self._children(path, field, column, standing, told)
        known = standing.as_before(field.name, column)
        return known or standing.keep(field.name, column, unrelated(field, column, standing.order))

    def _children(self, path: str, field: FieldPlan, column: Sequence[Any], standing: TableStanding, told: Told) -> list[Any]:
        assert field.child is not None
        order = standing.order
        if field.kind == "counts":
            packed, lasts = growth(order.by_subject(column), standing.of(field.name), order)
            standing.put(field.name, lasts)
            return packed
        if field.kind == "one":
            column = [() if value is None else (value,) for value in column]
        lengths = [-1 if value is None else len(value) for value in column]
        held = _rows(column, SORTED.get(field.child))
        parents = list(chain.from_iterable(map(repeat, order.ids, lengths)))
        above_ns = list(chain.from_iterable(map(repeat, told["t_ns"], lengths))) if field.child is SchedThread else ()
        if field.child is ThreadSample:
            _leave_out_main(held, lengths, told)
        same = lengths.count(lengths[0]) == len(lengths)
        counted = [CONST, lengths[0]] if same else _integers(field, lengths, standing)
        return [TABLE, counted, self.table(f"{path}.{field.name}", field.child, held, parents, order, above_ns)]


def _rows(column: Sequence[Any], key: Callable[[Any], Any] | None) -> list[tuple[Any, ...]]:
    """The rows below a column of lists, one after the other, those of each list by ``key``."""
    if key is None:
        return list(map(astuple, chain.from_iterable(filter(None, column))))
    return list(chain.from_iterable([sorted(map(astuple, value), key=key) for value in filter(None, column)]))


def _integers(field: FieldPlan, column: Sequence[Any], standing: TableStanding, code: int = STEPS) -> list[Any] | None:
    """None beyond 64 bits."""
    known = standing.as_before(field.name, column)
    if known is not None:
        return known
    try:
        packed, lasts = integers(code, column, standing.of(field.name), standing.order, field.step)
    except OverflowError:
        return None
    standing.put(field.name, lasts)
    return standing.keep(field.name, column, packed) if packed[-1] == ZEROS else packed


def _leave_out_main(threads: list[tuple[Any, ...]], lengths: Sequence[int], told: Told) -> None:
    """Main threads, the first of each process, that repeat its sample become a sign that they do."""
    at = 0
    mains = compress(zip(*map(told.__getitem__, MAIN_THREAD), *map(repeat, _OWN), strict=False), lengths)
    for main, length in zip(mains, filter(None, lengths), strict=True):
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
