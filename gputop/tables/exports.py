"""The export formats, and the rows that they write: those of the SQL tables, with cleaned text, since many readers print it as it is.

A format is a module ``export_<format>.py`` with ``write(recording, output, start_ns, end_ns)``, and its name in `FORMATS`. ``write`` raises
UserError, or OSError if the output cannot be written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from gputop.recording.reader import Recording
from gputop.system.text import clean_lines
from gputop.tables.load import Loader, Wanted
from gputop.tables.schema import TABLES

FORMATS = ("csv", "sqlite", "parquet", "perfetto", "html")
Row = tuple[Any, ...]
ALL: Wanted = {spec.name: [column.name for column in spec.columns] for spec in TABLES.values()}
MOST_CHARACTERS = 1 << 20  # of a text; the rest is cut


def batches(recording: Recording, start_ns: int, end_ns: int, wanted: Wanted = ALL) -> Iterator[tuple[str, list[Row]]]:
    """Yield (table, rows of its ``wanted`` columns), in many batches: recordings are larger than memory."""
    types = {name: {column.name: column.type for column in TABLES[name].columns} for name in wanted}
    texts = {name: [i for i, column in enumerate(columns) if types[name][column] == "TEXT"] for name, columns in wanted.items()}
    for table, rows in Loader(recording, wanted, start_ns, end_ns).batches():
        yield table, [_cleaned(row, texts[table]) for row in rows] if texts[table] else list(rows)


def _cleaned(row: Row, texts: list[int]) -> Row:
    out = list(row)
    for i in texts:
        if isinstance(out[i], str):
            out[i] = _clean(out[i])
    return tuple(out)


@lru_cache(maxsize=4096)
def _clean(text: str) -> str:
    return clean_lines(text, MOST_CHARACTERS)


def writer(form: str) -> Callable[..., None]:
    """The ``write`` of a format; only its module is imported."""
    found: Callable[..., None] = importlib.import_module(f"gputop.tables.export_{form}").write
    return found
