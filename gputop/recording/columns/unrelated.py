"""Columns that do not build upon the block before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from gputop.recording.columns.layout import (
    ANY,
    CONST,
    DOUBLES,
    LAST_SCALED,
    RUNNING,
    SCALED,
    WORDS,
    ColumnError,
    FieldPlan,
    Order,
    from_planes,
    unpack_integers,
)
from gputop.recording.columns.sums import sums, times, whole, with_absent, with_absent_at_last

STRAIGHT = (CONST, ANY, RUNNING)
"""Codes whose values stand in the order of rows."""


def straight(field: FieldPlan, packed: list[Any], rows: int) -> Sequence[Any]:
    """A column of one of these."""
    code, *parts = packed
    if code == CONST:
        return _same(field, parts[0], rows)
    if code == ANY:
        return typed(field, parts[0], rows)
    absent, unit, first, steps = parts
    numbers = sums(times(unit, unpack_integers(first, 1)), times(unit, unpack_integers(steps, rows)), [(0, rows)], from_last=False)
    return with_absent(field, absent, whole(numbers))


def by_subject(field: FieldPlan, packed: list[Any], order: Order) -> Sequence[Any]:
    """A column whose values stand in the order of subjects. ColumnError where its code is none of these."""
    code, *parts = packed
    rows = len(order.ids)
    if code in (SCALED, LAST_SCALED) and field.kind == "float":
        absent, scale, anchors, steps = parts
        steps = sums(unpack_integers(anchors, len(order.starts)), unpack_integers(steps, rows), order.spans, code == LAST_SCALED)
        return with_absent(field, absent, scaled(whole(steps), scale))
    if code == DOUBLES and field.kind == "float":
        return with_absent(field, parts[0], from_planes(array("d"), parts[1], rows).tolist())
    if code == WORDS and field.kind in ("word", "int"):
        words = typed(field, parts[0])
        return [words[i] for i in unpack_integers(parts[1], rows)]
    raise ColumnError("its encoding is not known")


def at_last(field: FieldPlan, packed: list[Any], order: Order) -> Sequence[Any] | None:
    """Each subject's last value, None where all of the column must be read for it."""
    code, *parts = packed
    if code == CONST:
        return _same(field, parts[0], len(order.ends))
    if code == LAST_SCALED and field.kind == "float":
        absent, scale, lasts, _ = parts
        return with_absent_at_last(field, absent, scaled(unpack_integers(lasts, len(order.ends)), scale), order)
    if code == WORDS and field.kind in ("word", "int"):
        words, indices = typed(field, parts[0]), unpack_integers(parts[1], len(order.ids))
        return [words[index] for index in order.at_ends(indices)]
    return None


def scaled(numbers: list[int], scale: Any) -> list[float]:
    """Whole numbers as the floats that they are told of. Raises ColumnError where ``scale`` is none."""
    if type(scale) is not int or scale <= 0:
        raise ColumnError("a column has an impossible scale")
    return [number / scale for number in numbers]


def defaults(field: FieldPlan, count: int) -> list[Any]:
    """What a column that is not told holds in ``count`` rows. Raises ColumnError."""
    if field.default is None:
        raise ColumnError("it is missing")
    return [field.default() for _ in range(count)]


def typed(field: FieldPlan, values: Any, count: int | None = None) -> list[Any]:
    """``values``, ``count`` of them where that is said, each of the type that the field declares. Raises ColumnError, MsgspecError."""
    if count is not None and len(values) != count:
        raise ColumnError("a column has another length than its table")
    return list(msgspec.convert(values, list[field.type]))  # type: ignore[name-defined]


def _same(field: FieldPlan, value: Any, count: int) -> list[Any]:
    return [msgspec.convert(value, field.type)] * count
