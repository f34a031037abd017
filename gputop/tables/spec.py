"""What a table of a recording is, and a column of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from gputop.tables.rows import Rows


class Column(Struct, frozen=True):
    """A column; ``make`` gives one value per row, some only when they are asked for."""

    name: str
    type: str
    help: str
    make: Callable[[Rows], Iterable[Any]]
    adds_up: bool = False  # whether several readings in one tick are summed in its row; else the last one stands there


class TableSpec(Struct, frozen=True):
    """A table. ``path`` is where its rows stand in a frame; empty for tables that are made otherwise."""

    name: str
    help: str
    path: tuple[str, ...]
    columns: tuple[Column, ...]
    keep: Callable[[Rows], Sequence[Any] | None] | None = None  # which rows belong to it, None for all
    own_time: bool = False  # whether a row's time is its own ``t_ns``, not that of its tick


CLOCK = (
    Column("t_ns", "INTEGER", "time of the tick, CLOCK_MONOTONIC ns", lambda rows: rows.ticks),
    Column("unix_s", "REAL", "time of the tick, s since 1970",
           lambda rows: rows.per_tick("unix_s", lambda t_ns: rows.known.header.unix_ns_of(t_ns) / 1e9)),
    Column("t_s", "REAL", "time of the tick, s since the recording began",
           lambda rows: rows.per_tick("t_s", lambda t_ns: (t_ns - rows.known.start_ns) / 1e9)),
)  # fmt: skip


def made(name: str, type_: str, help_: str) -> Column:
    """A column of a table that is not made from rows of frames."""
    return Column(name, type_, help_, lambda rows: [None] * rows.count)
