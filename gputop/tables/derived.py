"""Values of columns that take more than one field of a row, and which rows belong to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Any

from gputop.model.syscalls import syscall_names
from gputop.tables.rows import Rows


def role(rows: Rows) -> Sequence[Any]:
    roles = rows.known.roles()
    return [own.kind if (own := roles.get(pid)) else "bystander" for pid in rows.gauge("pid")]


def offcpu_ns(rows: Rows) -> Sequence[Any]:
    """ns of the tick in which each process's main thread was not on a CPU."""
    pairs = zip(rows.increment("t_ns"), rows.increment("oncpu_ns"), strict=True)
    return [None if span is None or ran is None else max(0, span - ran) for span, ran in pairs]


def read_now(rows: Rows) -> Sequence[bool]:
    """Which rows were read in their tick; in a key frame the others repeat an earlier reading."""
    return rows.once("read", lambda: rows.not_restated(rows.samples, rows.keys()))


def listed_now(rows: Rows) -> Sequence[bool]:
    """Which rows of processes on GPUs were read in their tick; the others are restated by a key frame (see `read_now`)."""
    keys = [(gpu.index, proc.pid, proc.gpu_instance) for gpu, proc in zip(rows.owners, rows.samples, strict=True)]
    return rows.not_restated(rows.owners, keys)


WAITS, SWITCHES, OFFCPU = range(3)


def of_threads(rows: Rows, column: int) -> Sequence[Any]:
    """``WAITS``, ``SWITCHES`` or ``OFFCPU`` of all threads of each row's process (see `ProbedThreads.columns`); filled in later."""
    columns = rows.once("threads", lambda: rows.known.threads.columns(rows.ticks, rows.gauge("pid"), read_now(rows)))
    found: Sequence[Any] = columns[column]
    return found


def scaled_later(values: Sequence[Any], factor: float) -> Iterator[Any]:
    """Values times ``factor``, computed when they are read: `Known` fills them in later."""
    return (None if value is None else value * factor for value in values)


def mean_ms(rows: Rows) -> Sequence[Any]:
    pairs = zip(rows.increment("total_ns"), rows.increment("count"), strict=True)
    return [spent / calls / 1e6 if spent is not None and calls else None for spent, calls in pairs]


def pid_of(field: str) -> Callable[[Rows], Sequence[Any]]:
    return lambda rows: [rows.known.threads.pid_of.get(tid) for tid in rows.gauge(field)]


def name_of(field: str) -> Callable[[Rows], Sequence[Any]]:
    return lambda rows: [rows.known.name(rows.known.threads.pid_of.get(tid)) for tid in rows.gauge(field)]


def call_names(rows: Rows) -> Sequence[Any]:
    names = syscall_names(rows.known.header.machine)
    return [names.get(call, str(call)) if call >= 0 else "none" if call == -1 else None for call in rows.gauge("call")]


def flag(field: str) -> Callable[[Rows], Sequence[Any]]:
    return lambda rows: [int(value) for value in rows.gauge(field)]


def finite(column: Sequence[Any]) -> Sequence[Any]:
    """NaN and infinity, which some drivers answer, are no measurements."""
    return [value if value is None or isfinite(value) else None for value in column]
