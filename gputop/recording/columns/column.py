"""One column as the format keeps it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from math import gcd
from operator import sub
from typing import Any

from gputop.recording.columns.layout import (
    ANY,
    DOUBLES,
    FEW_VALUES,
    GROWTH,
    LAST_SCALED,
    RUNNING,
    WORDS,
    ZEROS,
    FieldPlan,
    Order,
    pack_integers,
    peaks,
    to_planes,
)

_SCALES = (1, 10, 100, 1000, 1_000_000)
_MOST = 1e9
_FIRST_STEPS = 64
MOST_WORDS = 64


class _Numbers(dict[Any, int]):
    """Different values, numbered as they are met."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


def coarse(field: FieldPlan, column: tuple[Any, ...]) -> Sequence[Any]:
    """Integers with the precision that a recording keeps; where the field has a unit, as multiples of that."""
    if field.peak:
        return peaks(column, field.peak)
    unit = field.unit
    try:
        return tuple([value // unit for value in column])
    except TypeError:
        return tuple([value if value is None else value // unit for value in column])


def plain(field: FieldPlan, column: Sequence[Any]) -> Sequence[Any]:
    """A column as it is read: what `coarse` made multiples, and floats as they are kept."""
    if field.unit:
        return [value and value * field.unit for value in column]
    if field.scale:
        return [value and round(value * field.scale) / field.scale if _is_number(value) else value for value in column]
    return column


def _is_number(value: float | None) -> bool:
    """Whether it can be rounded: older recordings were given what is no number."""
    return value is not None and abs(value) < _MOST


def running(column: Sequence[Any], unit: int) -> list[Any]:
    """Of key fields and clocks, whose order is that of the rows; as multiples of ``unit``."""
    try:
        steps = list(map(sub, column, (column[0], *column)))
        return [RUNNING, None, unit, pack_integers([column[0]]), pack_integers(steps)]
    except (TypeError, OverflowError):
        return [ANY, [value and value * unit for value in column]]


def integers(code: int, column: Sequence[Any], before: Sequence[int], order: Order, step: int) -> tuple[list[Any], Sequence[int]]:
    """A column by its steps from where subjects stood before, and where they then stand. OverflowError beyond 64 bits.

    ``step`` is what they are multiples of, see `FieldPlan`."""
    absent, filled = None, order.by_subject(column)
    behind = order.behind(before, filled)
    if behind == filled:  # of most columns nothing has changed
        return [code, None, step or 1, ZEROS], before
    try:
        steps = list(map(sub, filled, behind))
    except TypeError:
        absent, filled = _carry(filled, order.starts, before)
        steps = list(map(sub, filled, order.behind(before, filled)))
    if not step:
        step = _common(steps) or 1
        steps = steps if step == 1 else [number // step for number in steps]
    return [code, absent, step, pack_integers(steps)], order.at_ends(filled)


def _common(steps: Sequence[int]) -> int:
    """What all are multiples of. Mostly it is 1, which the first ones show: none has to look at all."""
    return 1 if gcd(*steps[:_FIRST_STEPS]) == 1 else gcd(*steps)


def growth(column: Sequence[dict[int, int]], stood: Sequence[dict[int, int]], order: Order) -> tuple[list[Any], Sequence[dict[int, int]]]:
    """What each row's counts, in order of subjects, have grown by since the subject was told of before, and where they then stand."""
    told = list(map(_grown, order.behind(stood, column), column))
    grown = list(chain.from_iterable(told))
    parts = list(map(len, told)), [bucket for bucket, _ in grown], [count for _, count in grown]
    return [GROWTH, *map(pack_integers, parts)], order.at_ends(column)


def _grown(before: dict[int, int], counts: dict[int, int]) -> list[tuple[int, int]]:
    """(bucket, how much its count grew); all of it where it is no more."""
    stood = before.get
    if len(counts) == len(before):
        try:
            return [(bucket, count - before[bucket]) for bucket, count in counts.items() if count != before[bucket]]
        except KeyError:  # they seldom tell of other buckets
            pass
    grown = [(bucket, count - stood(bucket, 0)) for bucket, count in counts.items() if count != stood(bucket)]
    if len(counts) - len(before) == sum([bucket not in before for bucket, _ in grown]):
        return grown
    return grown + [(bucket, -before[bucket]) for bucket in before.keys() - counts.keys()]


def unrelated(field: FieldPlan, column: Sequence[Any], order: Order) -> list[Any]:
    """A column that does not build upon the block before."""
    if field.kind == "float":
        return _floats(field, column, order)
    words = _words(column, order) if field.kind == "word" or field.name in FEW_VALUES else None
    return words or [ANY, column]


def _floats(field: FieldPlan, column: Sequence[Any], order: Order) -> list[Any]:
    filled = order.by_subject(column)
    absent, filled = _fill(filled, order.spans) if None in filled else (None, filled)
    for scale in (field.scale,) if field.scale else _SCALES:
        whole = _scaled(filled, scale, exact=not field.scale)
        if whole is not None:
            steps = list(map(sub, whole, (0, *whole)))
            for start in order.starts:
                steps[start] = 0
            return [LAST_SCALED, absent, scale, pack_integers(order.at_ends(whole)), pack_integers(steps)]
    return [DOUBLES, absent, to_planes(array("d", plain(field, filled)).tobytes(), 8)]


def _scaled(column: Sequence[float], scale: int, exact: bool) -> list[int] | None:
    """``column`` times ``scale`` in whole numbers; None where these were too large or, where it must be ``exact``, cannot be undone."""
    if not all(map(_MOST.__gt__, map(abs, column))) or (exact and round(column[-1] * scale) / scale != column[-1]):
        return None
    whole = [round(value * scale) for value in column]
    return whole if not exact or [number / scale for number in whole] == list(column) else None


def _words(column: Sequence[Any], order: Order) -> list[Any] | None:
    """None for too many different ones."""
    numbers = _Numbers()
    indices = list(map(numbers.__getitem__, order.by_subject(column)))
    return [WORDS, list(numbers), pack_integers(indices)] if len(numbers) <= MOST_WORDS else None


def _carry(column: Sequence[Any], starts: Iterable[int], before: Sequence[int]) -> tuple[bytes, Sequence[int]]:
    """Where values are absent, and the column with where its subject stood in their places."""
    held = list(column)
    for start, stood in zip(starts, before, strict=True):
        if held[start] is None:
            held[start] = stood
    last = 0
    return bytes([value is None for value in column]), [last := last if value is None else value for value in held]


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
