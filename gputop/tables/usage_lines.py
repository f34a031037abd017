"""The report of `gputop.tables.usage` as text, in the shape of a message (`gputop.findings.message`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gputop.findings import message
from gputop.findings.verdict import SEVERITY_COLOURS, Fix, best_fix
from gputop.system.colour import Line, Span
from gputop.system.text import cell_width, clean, cut
from gputop.tables.usage_text import SHARE, Table, incident_title, replay_command, requests_of, summary, tables, title_of

GAP = 2  # columns between two of a table
LEAST_NAME = 8  # columns of a name, however narrow the terminal


def lines(told: dict[str, Any], width: int) -> Iterator[Line]:
    """Lines of at most ``width`` columns, except for commands."""
    first, *rest = summary(told)
    wasted = told["total"]["lost_s"] + told["total"]["unused_s"]
    yield from _head(title_of(told), "medium" if wasted else "info", width)
    yield from message.wrapped(first, width, "title")
    for text in rest:
        yield from message.wrapped(text, width)
    for one in told["incidents"]:
        yield []
        yield from _incident(one, width)
    for table in tables(told):
        yield []
        yield from _table(table, width)
    yield from [[]] if told["problems"] else []
    for problem in told["problems"]:
        yield from message.wrapped(f"note: {problem}", width, "dim", indent=0)


def _head(what: str, severity: str, width: int) -> Iterator[Line]:
    mark = "●" if severity == "info" else "▲"
    yield from message.wrapped(f"{mark} {what}", width, SEVERITY_COLOURS[severity], indent=0)


def _incident(one: dict[str, Any], width: int) -> Iterator[Line]:
    yield from _head(incident_title(one), one["severity"], width)
    yield from message.wrapped(one["headline"], width, "title")
    yield from message.wrapped(one["detail"], width)
    yield from message.requests(requests_of(one), width)
    if (fix := best_fix(msgspec.convert(one["fixes"], list[Fix]))) is not None:
        yield from message.fixes([fix], width)
    if one["help_url"]:
        yield from message.labelled("more", [(one["help_url"], "")], width)
    yield from message.onward([(replay_command(one), "")])


def _table(table: Table, width: int) -> Iterator[Line]:
    """The table; where it would be wider than ``width``, names are cut, then bars are left out."""
    heads, is_number = [head.lstrip(">") for head in table.heads], [head.startswith(">") for head in table.heads]
    rows = [[clean(cell) for cell in row] for row in table.rows]
    names = [i for i, head in enumerate(heads) if not is_number[i] and head != SHARE]
    rooms = _rooms(heads, rows, names, width)
    if sum(rooms) + GAP * len(rooms) > width and heads[-1] == SHARE:
        rows = [[*row[:-1], " ".join(row[-1].split()[-2:])] for row in rows]
        rooms = _rooms(heads, rows, names, width)
    yield [(table.title, "title")]
    yield from message.wrapped(table.note, width, "dim") if table.note else ()
    yield list(_cells(heads, rooms, is_number, ["dim"] * len(heads)))
    colours = ["accent" if head == SHARE else "" for head in heads]
    for row in rows[:-1]:
        yield list(_cells(row, rooms, is_number, colours))
    yield list(_cells(rows[-1], rooms, is_number, ["title"] * len(heads)))


def _rooms(heads: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[int], width: int) -> list[int]:
    """The columns of each cell, those of names no wider than ``width`` allows."""
    rooms = [max(cell_width(cell) for cell in column) for column in zip(heads, *rows, strict=True)]
    while sum(rooms) + GAP * len(rooms) > width and max(rooms[i] for i in names) > LEAST_NAME:
        rooms[max(names, key=lambda i: rooms[i])] -= 1
    return rooms


def _cells(row: Sequence[str], rooms: Sequence[int], is_number: Sequence[bool], colours: Sequence[str]) -> Iterator[Span]:
    last = len(row) - 1
    for i, (cell, room, colour) in enumerate(zip(row, rooms, colours, strict=True)):
        shown = cut(cell, room)
        blank = " " * (room - cell_width(shown))
        yield " " * GAP, ""
        yield (blank + shown if is_number[i] else shown if i == last else shown + blank), colour
