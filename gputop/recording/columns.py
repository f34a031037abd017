"""Frames as columns, which compress to a fifth of their msgpack: the content of a piece before zstd.

Lists of structs are tables. The rows of a table are sorted by subject (a pid, a GPU, a thread), so that a counter stands next to its own
next reading, and integers are kept as steps from the reading before, also from that in an earlier piece of the chunk.

    table   = {"": [rows, key column, …], field: column, …}; a field that is missing has its default in every row
    column  = [0, value]                    the same in every row
              [1, values]                   any values, by subject
              [2, absent, steps]            integers, as multiples of the field's unit; absent: a byte per row, 1 for None, or nil
              [3, absent, steps]            floats, as multiples of 1/1000 (or 1/10, see `TENTHS`)
              [4, lengths, table]           lists of structs, or structs (length 1); -1 is None. By row, not by subject
              [5, lengths, buckets, growths]  dicts of counts: how many have grown since the subject's row before, which, and by how much;
                                            one that is gone shrinks by its whole count
    integers (steps, lengths, keys) = width u8 (0, 1, 2, 4, 8), then little-endian numbers: all lowest bytes, then all second ones, …

A thread with ``timeslices`` -1 and its process's pid as tid repeats the process's own sample.

A recording keeps no more digits than any screen, table or verdict shows (`UNITS`). Counters lose nothing by it in the long run: only their
readings are rounded down.
"""

from __future__ import annotations

import struct
import sys
import typing
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, count, islice, repeat
from operator import add, itemgetter, sub
from types import NoneType
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from gputop.model.collective import COLLECTIVE_KEY
from gputop.model.frame import Frame, ProcSample, ThreadSample
from gputop.model.probes import WAKEUP_KEY
from gputop.model.serving import SERVING_KEY

MOST_CELLS = 4_000_000  # values of a piece; the largest that is written has half a million
FREE_ROWS = 1024  # of a piece, however short
SAME, ANY, INTEGERS, FLOATS, TABLE, COUNTS = range(6)
KEYS = {
    "Frame": (), "Host": (), "Psi": (), "Probes": (), "SelfCost": (), "Hardware": (), "Preempt": ("victim_tid", "culprit_tid"),
    "Wakeup": WAKEUP_KEY, "CudaCall": ("pid", "call"), "ThreadCalls": ("tid", "call"), "Serving": SERVING_KEY,
    "Collective": COLLECTIVE_KEY,
}  # fmt: skip
"""The subject of a row, if that is not its first field. New ones come last: tables of older recordings lack them."""
UNITS = dict.fromkeys(
    ("late_ns", "oncpu_ns", "run_delay_ns", "runnable_ns", "preempted_ns", "sleeping_ns", "uninterruptible_ns", "ns", "wait_ns", "nvml_ns",
     "proc_ns", "cpu_ns", "drain_ns", "run_ns", "wire_busy_ns", "wire_arriving_ns", "Gpu.t_ns", "GpuReading.t_ns", "util_t_ns"), 100_000,
) | {"t_ns": 10_000, "Frame.t_ns": 1, "Mark.t_ns": 1, "total_ns": 1000, "energy_mj": 100} | dict.fromkeys(
    ("pcie_tx_bytes", "pcie_rx_bytes", "nvlink_tx_bytes", "nvlink_rx_bytes", "c2c_tx_bytes", "c2c_rx_bytes", "wire_sent_bytes",
     "wire_received_bytes"), 1 << 16,
) | {"anon_bytes": 1 << 12, "shared_bytes": 1 << 12}  # fmt: skip
"""ns, bytes or mJ that a field is rounded down to."""
PEAKS = {"max_run_delay_ns": 50_000, "max_ns": 1000}  # ns that the longest waits are rounded up to
TENTHS = frozenset((
    "power_w", "gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct", "sm_pct", "mem_pct",
))  # fmt: skip
CLOCKS = frozenset(("t_ns", "start_ticks"))  # columns that every reader of a table needs
JUMPING = frozenset(("syscall", "syscall_arg", "processor", "locked_by", "lock_tid", "wchan", "gone", "forgotten"))
"""Numbers that count nothing."""
MAIN_THREAD = ("pid", "oncpu_ns", "run_delay_ns", "timeslices", "state", "vol", "invol")  # of a process, repeated by its main thread
_REPEATS = astuple(ThreadSample(0, 0, 0, -1))[1:]
_MOST_FLOAT = 1e9
ZEROS = b"\0"
_NO_COUNTS: dict[int, int] = {}
_TYPECODES = {1: "b", 2: "h", 4: "i", 8: "q"}


class ColumnError(ValueError):
    """These columns are not what an encoder writes."""


class FieldPlan(NamedTuple):
    """Encoding of a field of a struct."""

    name: str
    kind: str  # ``int``, ``float``, ``counts`` or ``any``; ``list`` and ``one`` are tables of ``child``
    type: Any
    nullable: bool
    default: Callable[[], Any] | None
    child: Any
    unit: int  # integers are rounded to it; floats to one over it
    up: bool


class StructPlan(NamedTuple):
    """Encoding of a struct."""

    fields: tuple[FieldPlan, ...]
    keys: tuple[str, ...]
    by_name: dict[str, FieldPlan]


@cache
def plan_of(of: type) -> StructPlan:
    hints = typing.get_type_hints(of)
    infos = msgspec.structs.fields(of)
    fields = tuple(_field(of.__name__, info, hints[info.name]) for info in infos)
    return StructPlan(fields, KEYS.get(of.__name__, (infos[0].name,)), {field.name: field for field in fields})


def _field(of: str, info: msgspec.structs.FieldInfo, hint: Any) -> FieldPlan:
    nullable = NoneType in typing.get_args(hint)
    bare = next(part for part in typing.get_args(hint) if part is not NoneType) if nullable else hint
    kind, child, arguments = {int: "int", float: "float"}.get(bare, "any"), None, typing.get_args(bare)
    if typing.get_origin(bare) is list and isinstance(arguments[0], type) and issubclass(arguments[0], msgspec.Struct):
        kind, child = "list", arguments[0]
    elif bare == dict[int, int]:
        kind = "counts"
    elif isinstance(bare, type) and issubclass(bare, msgspec.Struct):
        kind, child = "one", bare
    default: Callable[[], Any] | None = None
    if info.default is not msgspec.NODEFAULT:
        default = lambda value=info.default: value  # noqa: E731
    elif info.default_factory is not msgspec.NODEFAULT:
        default = info.default_factory
    unit = UNITS.get(f"{of}.{info.name}") or UNITS.get(info.name) or PEAKS.get(info.name, 1)
    if kind == "float":
        unit = 10 if info.name in TENTHS else 1000
    return FieldPlan(info.name, "any" if info.name in JUMPING else kind, hint, nullable, default, child, unit, info.name in PEAKS)


class Subjects:
    """The subjects of one table, over a chunk, and where their numbers stood last."""

    def __init__(self) -> None:
        self._slots: defaultdict[Any, int] = defaultdict(count().__next__)  # a new subject gets the next number
        self._lasts: dict[str, list[int]] = {}
        self._counts: dict[str, dict[int, dict[int, int]]] = {}
        self._ids: list[int] | None = None

    def arrange(self, keys: Iterable[Any]) -> None:
        """Take the rows of a piece, by their subjects' keys."""
        slots = self._slots
        ids = list(map(slots.__getitem__, keys))
        if ids == self._ids:
            return
        self._ids = ids
        rows = sorted(range(len(ids)), key=ids.__getitem__)
        inverse = [0] * len(rows)
        for place, row in enumerate(rows):
            inverse[row] = place
        self.by_subject, self.by_row = (tuple, tuple) if rows == inverse == list(range(len(rows))) else (pick(rows), pick(inverse))
        times = Counter(ids)
        self._present = sorted(times)
        counts = [times[slot] for slot in self._present]
        ends = list(accumulate(counts))
        self._starts = [0, *ends[:-1]]
        behind = list(range(len(slots) - 1, len(slots) + len(ids) - 1))
        for start, slot in zip(self._starts, self._present, strict=True):
            behind[start] = slot
        self._behind, self._at_ends = pick(behind), pick([end - 1 for end in ends])
        self._spread = pick(list(chain.from_iterable(map(repeat, range(len(counts)), counts))))
        self._before_starts = pick([start - 1 if start else len(ids) for start in self._starts])
        self._known = pick(self._present)
        self._complete = self._present == list(range(len(slots)))

    @property
    def ids(self) -> list[int]:
        return self._ids or []

    def _stood(self, name: str) -> list[int]:
        lasts = self._lasts.setdefault(name, [])
        lasts.extend(repeat(0, len(self._slots) - len(lasts)))
        return lasts

    def steps(self, name: str, column: tuple[int, ...]) -> Sequence[int]:
        """Steps of a column sorted by subject: each value minus the subject's one before; empty if nothing has changed."""
        stood = self._stood(name)
        behind = self._behind((*stood, *column))
        if behind == column:
            return ()
        self._put(name, stood, self._at_ends(column))
        return list(map(sub, column, behind))

    def values(self, name: str, steps: Sequence[int]) -> Iterable[int]:
        """The inverse of `steps`."""
        stood = self._stood(name)
        totals = [*accumulate(steps), 0]
        offsets = list(map(sub, self._known(stood), self._before_starts(totals)))
        self._put(name, stood, list(map(add, self._at_ends(totals), offsets)))
        return map(add, totals, self._spread(offsets))

    def hold(self, name: str) -> Iterable[int]:
        """The values where no step is other than 0."""
        return self._spread(self._known(self._stood(name)))

    def fill(self, name: str, column: Sequence[Any]) -> list[int]:
        """A column with the value before in place of each None."""
        stood, filled = self._known(self._stood(name)), list(column)
        for start, end, last in zip(self._starts, [*self._starts[1:], len(filled)], stood, strict=True):
            for i in range(start, end):
                last = filled[i] = last if filled[i] is None else filled[i]
        return filled

    def growths(self, name: str, column: Sequence[dict[int, int]]) -> list[bytes]:
        """Columns of code 5 for a column of counts (dicts), in the order of rows."""
        stood = self._counts.setdefault(name, {})
        grown: list[Sequence[tuple[int, int]]] = []
        for slot, counts in zip(self.ids, column, strict=True):
            before = stood.get(slot, _NO_COUNTS)
            if counts == before:
                grown.append(())
                continue
            told = [(bucket, count - before.get(bucket, 0)) for bucket, count in counts.items() if count != before.get(bucket)]
            told += [(bucket, -count) for bucket, count in before.items() if bucket not in counts]
            stood[slot] = counts
            grown.append(told)
        flat: list[int] = [*chain.from_iterable(chain.from_iterable(grown))]
        return [pack_integers(list(map(len, grown))), pack_integers(flat[::2]), pack_integers(flat[1::2])]

    def counts(self, name: str, lengths: list[int], growths: Iterator[tuple[int, int]]) -> list[dict[int, int]]:
        """The inverse."""
        stood, column = self._counts.setdefault(name, {}), []
        for slot, length in zip(self.ids, lengths, strict=True):
            counts = stood.get(slot, _NO_COUNTS)
            if length:
                counts = counts.copy()
                for bucket, growth in islice(growths, length):
                    counts[bucket] = count = counts.get(bucket, 0) + growth
                    if growth < 0 and not count:
                        del counts[bucket]
                stood[slot] = counts
            column.append(counts)
        return column

    def _put(self, name: str, stood: list[int], lasts: Sequence[int]) -> None:
        if self._complete:
            self._lasts[name] = list(lasts)
        else:
            for slot, last in zip(self._present, lasts, strict=True):
                stood[slot] = last


def pick(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Function that returns the values at ``places``."""
    return itemgetter(*places) if len(places) > 1 else lambda column: tuple(column[place] for place in places)


class ColumnEncoder:
    """Makes columns of the frames of one chunk."""

    def __init__(self) -> None:
        self._subjects: dict[str, Subjects] = {}

    def encode(self, frames: list[Frame]) -> bytes:
        """The table of some frames. OverflowError beyond 64 bits."""
        return msgspec.msgpack.encode(self._table("", Frame, list(map(astuple, frames)), [0] * len(frames)))

    def _table(self, path: str, of: type, rows: list[tuple[Any, ...]], parents: Iterable[int]) -> dict[str, Any]:
        plan = plan_of(of)
        columns = dict(zip((field.name for field in plan.fields), zip(*rows, strict=True), strict=False))
        subjects = self._subjects.setdefault(path, Subjects())
        keys = [columns[name] for name in plan.keys]
        subjects.arrange(zip(parents, *keys, strict=True))
        packed: dict[str, Any] = {"": [len(rows), *(_pack_key(column) for column in keys)]}
        for field in plan.fields:
            if field.name not in plan.keys:
                column = columns[field.name]
                first = column[0]
                if column.count(first) == len(column) and not (field.child and first) and field.kind not in ("int", "counts"):
                    if field.default is None or first != field.default() or type(first) is bool:
                        packed[field.name] = [SAME, first]
                elif field.kind == "counts":
                    packed[field.name] = [COUNTS, *subjects.growths(field.name, column)]
                elif field.child:
                    mains = zip(*map(columns.__getitem__, MAIN_THREAD), strict=True) if field.child is ThreadSample else None
                    packed[field.name] = self._children(path, field, column, subjects, mains)
                else:
                    packed[field.name] = self._values(field, subjects.by_subject(column), subjects)
        return packed

    def _children(self, path: str, field: FieldPlan, column: Sequence[Any], subjects: Subjects, mains: Any) -> list[Any]:
        if field.kind == "one":
            column = [value if value is None else (value,) for value in column]
        lengths = [-1 if value is None else len(value) for value in column]
        rows = list(map(astuple, chain.from_iterable(value for value in column if value)))
        if mains is not None:
            _leave_out(mains, lengths, rows)
        parents = chain.from_iterable(map(repeat, subjects.ids, lengths))
        return [TABLE, pack_integers(lengths), self._table(f"{path}.{field.name}", field.child, rows, parents) if rows else {"": [0]}]

    def _values(self, field: FieldPlan, column: Sequence[Any], subjects: Subjects) -> list[Any]:
        absent = None
        if field.kind == "any":
            return [ANY, column]
        if None in column:
            absent = bytes([value is None for value in column])
            if absent.count(1) == len(absent):
                return [SAME, None]
        if field.kind == "int":
            if field.unit > 1:
                unit, up = field.unit, field.unit - 1 if field.up else 0
                column = tuple([value if value is None else (value + up) // unit for value in column])
        else:
            scale, bound = field.unit, _MOST_FLOAT
            if not all(value is None or -bound < value < bound for value in column):
                return [ANY, column]
            whole = [value if value is None else round(value * scale) for value in column]
            if scale != 10 and [value if value is None else value / scale for value in whole] != list(column):
                return [ANY, column]
            column = whole
        if absent:
            column = subjects.fill(field.name, column)
        return [INTEGERS if field.kind == "int" else FLOATS, absent, pack_integers(subjects.steps(field.name, tuple(column)))]


def _leave_out(mains: Iterable[tuple[Any, ...]], lengths: Sequence[int], threads: list[tuple[Any, ...]]) -> None:
    """Replace each main thread, the first of its process, by a mark that it repeats the process's sample, if it does."""
    at = 0
    for main, length in zip(mains, lengths, strict=True):
        if length > 0:
            if threads[at][: len(main)] == main and threads[at][len(main) :] == _REPEATS[len(main) - 1 :] and None not in main[1:4]:
                threads[at] = (main[0], *_REPEATS)
            at += length


def _pack_key(column: Sequence[Any]) -> Any:
    return pack_integers(list(map(sub, column, (0, *column)))) if type(column[0]) is int else column


class ColumnDecoder:
    """Reads the columns of the pieces of one chunk, in order.

    With ``parts`` only these tables and columns, such as ``probes.calls`` and ``procs.vol``; all columns of frames, keys and `CLOCKS` are
    always read. Other values are defaults.
    """

    def __init__(self, parts: tuple[str, ...] | None = None) -> None:
        self._parts = parts
        self._subjects: dict[str, Subjects] = {}
        self._wanted: dict[str, frozenset[str]] = {}

    def decode(self, plain: bytes) -> list[Frame]:
        """The frames. ColumnError, or another ValueError or MsgspecError, where they are not what an encoder writes."""
        self._rows_left, self._cells_left = FREE_ROWS + len(plain), MOST_CELLS
        try:
            return self._table("", Frame, msgspec.msgpack.decode(plain), [0])
        except (KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
            raise ColumnError(f"a table is broken: {error}") from None

    def _is_wanted(self, path: str, field: FieldPlan) -> bool:
        if self._parts is None or field.name in CLOCKS:
            return True
        name = f"{path}.{field.name}"[1:]
        if field.child is None:
            return not path or path[1:] in self._parts or name in self._parts
        return any(part == name or part.startswith(f"{name}.") for part in self._parts)

    def _claim(self, rows: Any, columns: int) -> int:
        if type(rows) is not int or not 0 <= rows <= min(self._rows_left, self._cells_left // columns):
            raise ColumnError("a table claims too many rows")
        self._rows_left -= rows
        self._cells_left -= rows * columns
        return rows

    def _table(self, path: str, of: type, packed: dict[str, Any], parents: Sequence[int]) -> list[Any]:
        plan = plan_of(of)
        count, *keys = packed[""]
        count = self._claim(count, len(plan.fields))
        if not count:
            return []
        fields = plan.by_name
        if len(keys) > len(plan.keys):
            raise ColumnError("a table has too many keys")
        known = {name: self._key(fields[name], column, count) for name, column in zip(plan.keys, keys, strict=False)}
        for name in plan.keys[len(keys) :]:  # an older recording, from before this was a key
            default = fields[name].default
            if default is None:
                raise ColumnError("a key is missing")
            known[name] = [default()] * count
        subjects = self._subjects.setdefault(path, Subjects())
        subjects.arrange(zip(parents if path else [0] * count, *known.values(), strict=True))
        columns: list[Iterable[Any]] = []
        wanted = self._wanted.get(path)
        if wanted is None:
            wanted = self._wanted[path] = frozenset(field.name for field in plan.fields if self._is_wanted(path, field))
        for field in plan.fields:
            if field.name in known:
                columns.append(known[field.name])
            elif field.name not in packed or field.name not in wanted:
                if field.default is None and self._parts is None:
                    raise ColumnError("a field is missing")
                if field.default is None:
                    columns.append(repeat("" if field.kind == "any" else 0, count))
                    continue
                has_own = self._parts is None and field.default in (list, dict)  # a reader of other parts does not touch these
                columns.append([field.default() for _ in range(count)] if has_own else repeat(field.default(), count))
            else:
                column = self._column(path, field, packed[field.name], count, subjects)
                if field.child is ThreadSample:
                    _put_back(zip(*(columns[at] for at in _MAIN_PLACES), strict=True), column)
                columns.append(column)
        return list(map(of, *columns))

    def _key(self, field: FieldPlan, column: Any, count: int) -> Sequence[Any]:
        if isinstance(column, bytes):
            return list(accumulate(unpack_integers(column, count)))
        return _typed(field, column, count)

    def _column(self, path: str, field: FieldPlan, packed: list[Any], count: int, subjects: Subjects) -> Sequence[Any]:
        code, *parts = packed
        if code == SAME:
            return [msgspec.convert(parts[0], field.type)] * count
        if code == ANY:
            return subjects.by_row(_typed(field, parts[0], count))
        if code == COUNTS and field.kind == "counts":
            sizes = unpack_integers(parts[0], count)
            grown = self._claim(sum(sizes), 1)
            growths = zip(unpack_integers(parts[1], grown), unpack_integers(parts[2], grown), strict=True)
            return subjects.counts(field.name, sizes, growths)
        if code == TABLE and field.child:
            lengths, below = parts
            return self._children(path, field, lengths, below, count, subjects)
        absent, steps = parts
        if code != (INTEGERS if field.kind == "int" else FLOATS if field.kind == "float" else -1):
            raise ColumnError("a column's kind is not known")
        numbers = subjects.hold(field.name) if steps == ZEROS else subjects.values(field.name, unpack_integers(steps, count))
        unit = field.unit
        if field.kind == "float":
            values: list[Any] = [number / unit for number in numbers]
        else:
            values = [number * unit for number in numbers] if unit > 1 else list(numbers)
        if absent is not None:
            if not field.nullable or len(absent) != count:
                raise ColumnError("values are absent that must be there")
            values = [None if gone else value for gone, value in zip(absent, values, strict=True)]
        return subjects.by_row(values)

    def _children(self, path: str, field: FieldPlan, lengths: Any, below: Any, count: int, subjects: Subjects) -> Sequence[Any]:
        sizes = unpack_integers(lengths, count)
        least, most = -int(field.nullable), 1 if field.kind == "one" else self._rows_left
        if min(sizes) < least or max(sizes) > most or sum(sizes) > self._rows_left:
            raise ColumnError("a list is too long, or absent")
        parents = list(chain.from_iterable(map(repeat, subjects.ids, sizes)))
        table = self._table(f"{path}.{field.name}", field.child, below, parents)
        if len(table) != len(parents):
            raise ColumnError("a table is shorter than its lists")
        rows = iter(table)
        if field.kind == "one":
            return [next(rows) if size > 0 else None for size in sizes]
        return [None if size < 0 else list(islice(rows, size)) for size in sizes]


_MAIN_PLACES = [ProcSample.__struct_fields__.index(name) for name in MAIN_THREAD]


def _put_back(mains: Iterable[tuple[Any, ...]], column: Sequence[list[ThreadSample] | None]) -> None:
    """The inverse of `_leave_out`."""
    for main, threads in zip(mains, column, strict=True):
        if threads and threads[0].timeslices == -1 and threads[0].tid == main[0]:
            if None in main[1:4]:
                raise ColumnError("a main thread repeats values that its process lacks")
            threads[0] = ThreadSample(*main)


def _typed(field: FieldPlan, values: Any, count: int) -> list[Any]:
    if len(values) != count:
        raise ColumnError("a column has another length than its table")
    return list(msgspec.convert(values, list[field.type]))  # type: ignore[name-defined]


def pack_integers(numbers: Sequence[int]) -> bytes:
    """Integers as the format has them. OverflowError beyond 64 bits."""
    if not any(numbers):
        return ZEROS
    for width, code in _TYPECODES.items():
        try:
            raw = struct.pack(f"<{len(numbers)}{code}", *numbers)
        except struct.error:
            continue
        return bytes((width,)) + b"".join([raw[plane::width] for plane in range(width)])
    raise OverflowError("a number is beyond 64 bits")


def unpack_integers(data: bytes, count: int) -> list[int]:
    """``count`` integers. ColumnError where they are not there."""
    width = data[0]
    if width == 0:
        return [0] * count
    if width not in _TYPECODES or len(data) != 1 + count * width:
        raise ColumnError("a column has another length than its table")
    raw = bytearray(count * width)
    for plane in range(width):
        raw[plane::width] = data[1 + plane * count : 1 + (plane + 1) * count]
    numbers = array(_TYPECODES[width], bytes(raw))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
