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
