"""Ask a recording in SQL; `.schema` lists tables and columns with units."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from gputop.commands.options import duration
from gputop.commands.span import add_span, stretch_of
from gputop.system.console import notify, write
from gputop.system.errors import UserError
from gputop.system.text import from_shell

WHO_SWITCHED = """SELECT pid, name, sum(coalesce(thread_switches, switches)) switches, sum(coalesce(thread_offcpu_s, offcpu_s))
    offcpu_s, max(stall_ms) worst_stall_ms FROM proc GROUP BY pid ORDER BY switches DESC LIMIT 10"""
WINDOWS = """SELECT p.w * 10 t_s, switches, calls, mean_ms FROM
    (SELECT CAST(t_s / 10 AS INT) w, sum(coalesce(thread_switches, switches)) switches
      FROM proc GROUP BY w) p LEFT JOIN
    (SELECT CAST(t_s / 10 AS INT) w, sum(calls) calls, sum(total_ms) / sum(calls) mean_ms FROM sync GROUP BY w) s USING (w)"""
WHO_TOOK = """SELECT culprit_pid pid, culprit name, sum(lost_s) cpu_s FROM preempt
  WHERE victim_pid IN (SELECT pid FROM process WHERE role = 'trainer') GROUP BY 1 ORDER BY cpu_s DESC LIMIT 10"""
EXAMPLES = f"""examples:
  which processes had most switches, off-CPU seconds and the worst stall in the last 2 minutes
    gputop query run.gputop --last 120 "{WHO_SWITCHED}"
  context switches, synchronize calls and their mean latency in 10 s windows
    gputop query run.gputop "{WINDOWS}"
  who took most CPU from the trainer
    gputop query run.gputop "{WHO_TOOK}"
  the incidents of the last two hours in the files of a rotation
    gputop query run*.gputop --last 2h "SELECT * FROM incident"
"""
_MEASURED_ROWS = 1000  # so many rows decide the widths of columns …
_MEASURED_BYTES = 8 << 20  # … or of so many characters
_MOST_WIDE = 80  # columns of a value on a terminal; a pipe gets texts whole
_WHOLE = 1 << 20  # characters of a text at most
_WRITTEN_BYTES = 1 << 16  # written together


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recording (may still grow), or files of a rotation")
    parser.add_argument("sql", metavar="SQL", type=from_shell, help="a SELECT, .tables, .schema, or .schema TABLE")
    add_span(parser)
    parser.add_argument("--timeout", type=duration("100ms"), default=30.0, metavar="TIME", help="stop a statement that runs longer (30s)")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="an array of objects")
    shape.add_argument("--csv", action="store_true", help="comma-separated values with a line of names")


def run(args: argparse.Namespace) -> int:
    """Write the answer to standard output, and to standard error what of the recording is lost."""
    from gputop.recording.parts import open_recording
    from gputop.tables.database import Database, describe
    from gputop.tables.events import VIEWS
    from gputop.tables.schema import TABLES

    with open_recording(args.files) as recording:
        word, *tables = args.sql.strip().rstrip(";").split() or [""]
        if word in (".schema", ".tables"):
            write("\n".join([describe(tables)] if word == ".schema" else [*TABLES, *VIEWS]) + "\n")
            return 0
        if not word or word.startswith("."):
            raise UserError(f"{word or 'nothing'} is no question: write a SELECT, .tables, .schema or .schema TABLE", code=2)
        stretch = stretch_of(args, recording)
        names, rows = Database(recording, *stretch, args.timeout).ask(args.sql)
        for text in _together((_json if args.json else _csv if args.csv else _table)(names, rows)):
            write(text.encode() if args.csv else text)
        if recording.problem:
            notify(f"{recording.path}: {recording.problem}")
    return 0


def _together(parts: Iterable[str]) -> Iterator[str]:
    """Several parts at a time, for each is written by a call of its own; of a statement that is stopped what came before, too."""
    waiting, size = [], 0
    try:
        for part in parts:
            waiting.append(part)
            size += len(part)
            if size >= _WRITTEN_BYTES:
                yield "".join(waiting)
                waiting, size = [], 0
    except UserError:
        yield "".join(waiting)
        raise
    yield "".join(waiting)


def _json(names: list[str], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    import json

    from gputop.tables.database import distinct

    opening, keys = "[", distinct(names)
    for row in rows:
        yield f"{opening}{json.dumps(dict(zip(keys, map(_plain, row), strict=True)))}"
        opening = ",\n"
    yield "[]\n" if opening == "[" else "]\n"


def _plain(value: object) -> object:
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _csv(names: list[str], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    import csv
    import io

    for row in chain([names], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([_csv_cell(value) for value in row])
        yield line.getvalue()


def _csv_cell(value: object) -> object:
    from gputop.system.text import csv_cell

    if value is None:
        return ""
    text = _text(value, whole=True)
    return csv_cell(text) if isinstance(value, str | bytes) else text


def _table(names: list[str], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    from gputop.system.text import cell_width

    rows = iter(rows)
    measured, stopped = _beginning(rows)
    first = [[_text(value) for value in row] for row in measured]
    right = [_is_number(column) for column in zip(*measured, strict=True)] or [False] * len(names)
    most = _MOST_WIDE if sys.stdout.isatty() else _WHOLE
    widths = [min(most, max(map(cell_width, column))) for column in zip([_text(name) for name in names], *first, strict=True)]
    for row in chain([[_text(name) for name in names]], first, ([_text(value) for value in row] for row in rows)):
        cells = [_cell(text, width, most, to_right) for text, width, to_right in zip(row, widths, right, strict=True)]
        yield "  ".join(cells).rstrip() + "\n"
    if stopped is not None:
        raise stopped


def _beginning(rows: Iterator[tuple[object, ...]]) -> tuple[list[tuple[object, ...]], UserError | None]:
    """The first rows, as many as fit into memory easily, and the error that has stopped the statement among them."""
    found: list[tuple[object, ...]] = []
    size = 0
    try:
        for row in islice(rows, _MEASURED_ROWS):
            found.append(row)
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if size > _MEASURED_BYTES:
                break
    except UserError as error:
        if not found:
            raise
        return found, error
    return found, None


def _is_number(column: Sequence[object]) -> bool:
    """True if all values that are there are numbers."""
    values = [value for value in column if value is not None]
    return bool(values) and all(isinstance(value, int | float) for value in values)


def _cell(text: str, width: int, most: int, to_right: bool) -> str:
    """A text of ``width`` columns, or as many as it takes up to ``most``."""
    from gputop.system.text import cell_width, fit

    own = min(most, cell_width(text))
    return " " * (width - own) + text if to_right and own < width else fit(text, max(width, own))


def _text(value: object, whole: bool = False) -> str:
    """A value for people, or with ``whole`` for programs; without anything that a terminal would obey."""
    from gputop.system.text import clean, clean_lines

    if value is None:
        return "–"
    if isinstance(value, float):
        return repr(value) if whole else f"{value:.3f}" if 1e6 <= abs(value) < 1e15 else f"{value:.7g}"
    return (clean_lines if whole else clean)(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value), 1 << 20)
