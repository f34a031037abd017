"""Ranges of numbers, by what they count: any program may have written a stream or a summary, and a type alone admits 1e306.

A decoder of msgspec refuses what lies outside, NaN too. `fitted` brings the numbers of a program's own structs into the ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import isfinite
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.inspect import DictType, FloatType, IntType, ListType, StructType, Type, UnionType

MOST_NS = 1 << 62  # 146 years: no clock of the kernel's reaches it
MOST_S = 1 << 42  # s: what 1,024 GPUs count in 136 years
MOST_UNIX_S = MOST_NS / 1e9  # s: the year 2116
MOST_COUNT = 1 << 53  # of frames, ticks, numbers of questions: a float of JSON holds it exactly
MOST_BYTES = 1 << 60  # of memory
MOST_PID = (1 << 31) - 1  # pid_t
MOST_CPUS = 1 << 16  # Linux knows 8,192
MOST_GPUS = 1 << 10  # Linux knows 256 of one driver
MOST_PER_S = 1e9  # steps in a second

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Percent = Annotated[float, Meta(ge=0.0, le=100.0)]
Seconds = Annotated[float, Meta(ge=0.0, le=MOST_S)]
UnixSeconds = Annotated[float, Meta(ge=0.0, le=MOST_UNIX_S)]
PerSecond = Annotated[float, Meta(ge=0.0, le=MOST_PER_S)]
Times = Annotated[float, Meta(ge=0.0, le=1e9)]  # how many times as fast
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]  # of any unit
BytesPerSecond = Annotated[float, Meta(ge=0.0, le=1e15)]
Watts = Annotated[float, Meta(ge=0.0, le=1e5)]
Celsius = Annotated[float, Meta(ge=-273.15, le=1e4)]
Ns = Annotated[int, Meta(ge=0, le=MOST_NS)]
Bytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
Count = Annotated[int, Meta(ge=0, le=MOST_COUNT)]
Bits = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Pid = Annotated[int, Meta(ge=0, le=MOST_PID)]
Ranks = Annotated[int, Meta(ge=0, le=MOST_PID)]  # a rank, or the number of ranks, as an environment may state it
Cpus = Annotated[int, Meta(ge=0, le=MOST_CPUS)]
Gpus = Annotated[int, Meta(ge=0, le=MOST_GPUS)]

_One = TypeVar("_One", bound=msgspec.Struct)


def fitted(value: _One) -> _One:
    """The struct with its numbers in their ranges: what lies outside becomes None if that may stand there, else the nearest that may."""
    fit = _fit_of(type(value))
    return value if fit is None else fit(value)


@cache
def _fit_of(kind: type) -> Callable[[Any], Any] | None:
    return _fit_struct(msgspec.inspect.type_info(kind))


def _fit(kind: Type, may_be_none: bool = False) -> Callable[[Any], Any] | None:
    """Function that fits a value of this type into its range; None if nothing in the type has a range."""
    if isinstance(kind, (IntType, FloatType)):
        return None if kind.ge is None or kind.le is None else partial(_fit_number, kind.ge, kind.le, may_be_none)
    if isinstance(kind, UnionType):
        fit = next((fit for one in kind.types if (fit := _fit(one, True)) is not None), None)
        return None if fit is None else lambda value: None if value is None else fit(value)
    if isinstance(kind, ListType):
        item = _fit(kind.item_type)
        return None if item is None else lambda value: [item(one) for one in value]
    if isinstance(kind, DictType):
        held = _fit(kind.value_type)
        return None if held is None else lambda value: {key: held(one) for key, one in value.items()}
    return _fit_struct(kind)


def _fit_struct(kind: Type) -> Callable[[Any], Any] | None:
    if not isinstance(kind, StructType):
        return None
    fits = [(field.name, fit) for field in kind.fields if (fit := _fit(field.type)) is not None]
    if not fits:
        return None

    def fit_struct(value: Any) -> Any:
        changed = {name: new for name, fit in fits if (new := fit(old := getattr(value, name))) is not old and new != old}
        return msgspec.structs.replace(value, **changed) if changed else value

    return fit_struct


def _fit_number(least: float, most: float, may_be_none: bool, value: float) -> float | None:
    if least <= value <= most:
        return value
    if may_be_none:
        return None
    return min(max(value, least), most) if isfinite(value) else least
