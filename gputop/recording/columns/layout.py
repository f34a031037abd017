"""How structs become columns: a plan per struct, rows in order of subjects, integers in bytes."""

from __future__ import annotations

import struct
import sys
import typing
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter, sub
from types import NoneType
from typing import Any

import msgspec
from msgspec import Struct

MOST_CELLS = 4_000_000  # values in all tables of a block together; a writer ends a block with 50,000 processes and threads
FREE_ROWS = 1024  # in a block, however short its table; measured: a row takes five bytes of it at least
INT64 = range(-(1 << 63), 1 << 63)
CONST, INTS, SCALED, DOUBLES, WORDS, ANY, TABLE, RUNNING, LAST_INTS, LAST_SCALED, CHANGES, GROWTH, STEPS, LESS = range(14)
_TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}
_WIDTHS = (b"\1", b"\2", b"\4", b"\x08")
KEYS = {
    "Frame": (), "Host": (), "Psi": (), "Probes": (), "SelfCost": (), "Preempt": ("victim_tid", "culprit_tid"),
    "Wakeup": ("wakee_tid", "waker_tid"), "CudaCall": ("pid", "call"),
}  # fmt: skip
"""What a row is about, where that is not its first field."""
UNITS = dict.fromkeys(
    ("late_ns", "oncpu_ns", "run_delay_ns", "runnable_ns", "preempted_ns", "sleeping_ns", "uninterruptible_ns", "ns", "wait_ns", "nvml_ns",
     "proc_ns", "cpu_ns", "drain_ns", "run_ns", "Gpu.t_ns", "util_t_ns"), 100_000,
) | {"t_ns": 10_000, "total_ns": 1000, "energy_mj": 100} | dict.fromkeys(
    ("pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes", "nvlink_rx_bytes"), 1 << 16,
)  # fmt: skip
"""Fields, of one struct where it is named, kept in steps of so much: counters lose nothing by it in the long run, and noise does not
compress."""
PEAKS = {"max_run_delay_ns": 50_000, "max_ns": 1000}
"""Longest waits, kept in steps of so many ns and to six significant bits, rounded up: none is shorter than the mean."""
SCALES = dict.fromkeys((
    "power_w", "gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "sm_pct", "mem_pct",
), 10)  # fmt: skip
"""Readings kept as multiples of one over that."""
ABOVE_NS = "^t_ns"
"""The ``t_ns`` of the row above, as a multiple of the field's unit."""
TOLD_LESS = {
    "SchedThread.pid": ("tid",), "Preempt.culprit_pid": ("culprit_tid",), "Wakeup.waker_pid": ("waker_tid",),
    "SchedThread.sleeping_ns": (ABOVE_NS, "oncpu_ns", "runnable_ns", "uninterruptible_ns"),
}  # fmt: skip
"""Fields kept less another of the row: a main thread's pid is its tid, and who does not run sleeps. The first, less the rest."""
MEASURED = ("_ns", "_bytes", "_mhz", "_mj")
"""How fields are named that may go in larger steps than one: ticks, pages."""
FEW_VALUES = frozenset({"syscall", "syscall_arg", "processor", "locked_by"})
"""Numbers that count nothing: few different ones, in any order."""
SWITCHES = frozenset({"timeslices", "vol", "invol"})
"""Where a struct has these, ``timeslices`` is kept less the other two."""
CLOCKS = frozenset({"t_ns", "seq"})
"""Fields that run on from row to row."""


MAIN_THREAD = ("pid", "oncpu_ns", "run_delay_ns", "timeslices", "state", "vol", "invol")
"""What a main thread's sample repeats of its process's."""


class ColumnError(ValueError):
    """These columns are not what an encoder writes."""


class Count(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a dict[int, int] as a row."""

    bucket: int
    count: int


class FieldPlan(Struct, frozen=True):
    """How a field is kept, from its declared type."""

    name: str
    kind: str
    """``int``, ``float``, ``word``, ``any``; ``list``, ``one`` and ``counts`` are tables of ``child``."""
    type: Any
    nullable: bool
    default: Callable[[], Any] | None
    child: type | None = None
    unit: int = 0
    peak: int = 0
    scale: int = 0
    """From `UNITS`, `PEAKS` and `SCALES`, 0 for none."""
    less: tuple[str, ...] = ()
    """From `TOLD_LESS`."""
    step: int = 0
    """What its values are multiples of: ``unit``, 1 of what is counted one by one, 0 where that is to be looked for."""


def peaks(column: Sequence[int], unit: int) -> Sequence[int]:
    """Longest waits as a recording keeps them."""
    return tuple([unit * (steps if (steps := -(-ns // unit)) < 64 else _six_bits(steps)) for ns in column])


def _six_bits(number: int) -> int:
    """The next one all further bits of which are 0."""
    spare = number.bit_length() - 6
    return -(-number >> spare) << spare


def told_less(field: FieldPlan, column: Callable[[str], Sequence[int]]) -> Sequence[int]:
    """What a field of `TOLD_LESS` is less, from the columns that make that up."""
    first, *rest = map(column, field.less)
    for other in rest:
        first = list(map(sub, first, other))
    return first


def tick_ns(t_ns: int) -> int:
    """A frame's time as a recording keeps it."""
    return t_ns - t_ns % UNITS["t_ns"]


Subject = tuple[Any, ...]
Pick = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the values at some places out of a column."""


class Order:
    """The rows of a table by subject."""

    __slots__ = ("_ahead", "_by_subject", "_lasts", "ends", "ids", "last_rows", "rows", "starts", "straight", "subjects")

    def __init__(self, parents: Sequence[int], above: Sequence[Subject], keys: Sequence[Sequence[Any]]) -> None:
        """From the number of each row's parent, the parents' subjects, and the columns of the key fields."""
        numbers: dict[Subject, int] = {}
        self.ids = [numbers.setdefault(about, len(numbers)) for about in zip(parents, *keys, strict=True)]
        """Number of each row's subject."""
        self.subjects = [above[about[0]] + about[1:] for about in numbers]
        rows: list[list[int]] = [[] for _ in numbers]
        for row, subject in enumerate(self.ids):
            rows[subject].append(row)
        self.rows = list(chain.from_iterable(rows))
        """Row numbers in order of subjects."""
        self.ends = list(accumulate(map(len, rows)))
        """Where in ``rows`` each subject ends."""
        self.starts = [0, *self.ends][: len(rows)]
        """And begins."""
        self.last_rows = [of_subject[-1] for of_subject in rows]
        """Each subject's last row."""
        self.straight = len(numbers) <= 1 or self.rows == list(range(len(self.ids)))
        self._by_subject: Pick | None = None
        self._lasts: Pick | None = None
        self._ahead: Pick | None = None

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """(start, end) of each subject in ``rows``."""
        return zip(self.starts, self.ends, strict=True)

    def at_ends(self, column: Sequence[Any]) -> list[Any]:
        """Each subject's last value in a column that is in the order of subjects."""
        if self._lasts is None:
            self._lasts = pick([end - 1 for end in self.ends])
        return list(self._lasts(column))

    def behind(self, before: Sequence[Any], column: Sequence[Any]) -> Sequence[Any]:
        """What stood before each value of a column that is in the order of subjects: the one before it, or its subject's of ``before``."""
        if self._ahead is None:
            ahead = list(range(len(self.ends) - 1, len(self.ends) + len(self.ids) - 1))
            for subject, start in enumerate(self.starts):
                ahead[start] = subject
            self._ahead = pick(ahead)
        return self._ahead((*before, *column))

    def by_subject(self, column: Sequence[Any]) -> Sequence[Any]:
        """From the order of rows to that of subjects."""
        if self.straight:
            return column
        if self._by_subject is None:
            self._by_subject = pick(self.rows)
        return self._by_subject(column)

    def by_row(self, column: Sequence[Any]) -> Sequence[Any]:
        """From the order of subjects to that of rows."""
        if self.straight:
            return column
        out = [None] * len(column)
        for row, value in zip(self.rows, column, strict=True):
            out[row] = value
        return out


def pick(places: Sequence[int]) -> Pick:
    """What takes those at ``places``."""
    return itemgetter(*places) if len(places) > 1 else lambda column: tuple(column[place] for place in places)


_plans: dict[type, tuple[FieldPlan, ...]] = {}
_named: dict[type, dict[str, FieldPlan]] = {}


def plans_of(struct: type) -> dict[str, FieldPlan]:
    """The same by name."""
    named = _named.get(struct)
    if named is None:
        named = _named[struct] = {field.name: field for field in plan_of(struct)}
    return named


def plan_of(struct: type) -> tuple[FieldPlan, ...]:
    """The plan of a struct's fields."""
    plan = _plans.get(struct)
    if plan is None:
        hints = typing.get_type_hints(struct)
        plan = _plans[struct] = tuple(_plan_field(struct.__name__, info, hints[info.name]) for info in msgspec.structs.fields(struct))
    return plan


def _plan_field(struct: str, info: msgspec.structs.FieldInfo, hint: Any) -> FieldPlan:
    nullable = NoneType in typing.get_args(hint)
    kind, child = _kind_of(next(part for part in typing.get_args(hint) if part is not NoneType) if nullable else hint)
    default: Callable[[], Any] | None = None
    if info.default is not msgspec.NODEFAULT:
        default = lambda value=info.default: value  # noqa: E731
    elif info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory
    name, full = info.name, f"{struct}.{info.name}"
    unit = UNITS.get(full) or UNITS.get(name, 0)
    step = unit or int(not name.endswith(MEASURED))
    return FieldPlan(
        name, kind, hint, nullable, default, child, unit, PEAKS.get(name, 0), SCALES.get(name, 0), TOLD_LESS.get(full, ()), step,
    )  # fmt: skip


def _kind_of(hint: Any) -> tuple[str, type | None]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is list and isinstance(arguments[0], type) and issubclass(arguments[0], msgspec.Struct):
        return "list", arguments[0]
    if hint == dict[int, int]:
        return "counts", Count
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "one", hint
    return {int: "int", float: "float", str: "word", bool: "word"}.get(hint, "any"), None


@lru_cache(2048)
def _packer(count: int, width: int) -> Callable[..., bytes]:
    return struct.Struct(f"{count}{_TYPECODES[width]}").pack


def pack_integers(numbers: Sequence[int]) -> bytes:
    """``integers`` of the format. OverflowError beyond 64 bits."""
    if not any(numbers):
        return b"\0"
    for width in _TYPECODES:
        try:
            raw = _packer(len(numbers), width)(*numbers)  # takes a third of the time of an array
        except struct.error:
            continue
        return bytes((width,)) + to_planes(raw, width)
    raise OverflowError("beyond 64 bits")


ZEROS = pack_integers([])
"""How a column of nothing but zeros is packed, however long."""


def unpack_integers(data: bytes, count: int) -> list[int]:
    """``count`` integers of the format. ColumnError where they are not there."""
    if data[:1] == b"\0":
        return [0] * count
    if data[:1] not in _WIDTHS:
        raise ColumnError("integers of an unknown width")
    return from_planes(array(_TYPECODES[data[0]]), data[1:], count).tolist()


def to_planes(raw: bytes, width: int) -> bytes:
    """Numbers of ``width`` bytes as this machine keeps them: all their lowest bytes, then all second ones."""
    planes = range(width) if sys.byteorder == "little" else range(width - 1, -1, -1)
    return raw if width == 1 else b"".join([raw[plane::width] for plane in planes])


def from_planes(numbers: array[Any], data: bytes, count: int) -> array[Any]:
    """``count`` numbers put into the empty array ``numbers``. ColumnError where there are not so many."""
    width = numbers.itemsize
    if len(data) != count * width:
        raise ColumnError("a column has another length than its table")
    raw = bytearray(len(data))
    for i in range(width):
        raw[i::width] = data[i * count : (i + 1) * count]
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
