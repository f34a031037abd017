"""Export formats, and the rows that they write: rows of the SQL tables, with cleaned text, since many readers print it as it is.

A format is a module ``export_<format>.py`` with ``write(recording, output, start_ns, end_ns)``, and its name in `FORMATS`. ``write`` raises
UserError, or OSError if the output cannot be written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from shlex import quote
from typing import Any

from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.plugins import EXPORTS, Plugin, load, plugins
from gputop.system.text import clean_lines
from gputop.tables.load import TableLoader, Wanted
from gputop.tables.schema import TABLES

FORMATS = {
    "csv": "a file a table, for a spreadsheet or pandas", "sqlite": "sqlite3 {} .tables",
    "parquet": "a folder a table, for DuckDB, Spark or ClickHouse: docs/fleet.md", "perfetto": "open it in https://ui.perfetto.dev",
    "html": "open it in a browser",
}  # fmt: skip
"""Name -> how what was written is opened; ``{}`` is its path."""
Row = tuple[Any, ...]
ALL: Wanted = {spec.name: [column.name for column in spec.columns] for spec in TABLES.values()}
MOST_CHARACTERS = 1 << 20  # of a text; the rest is cut


def batches(recording: Recording, start_ns: int, end_ns: int, wanted: Wanted = ALL) -> Iterator[tuple[str, list[Row]]]:
    """Yield (table, rows of its ``wanted`` columns), in many batches: recordings are larger than memory."""
    types = {name: {column.name: column.type for column in TABLES[name].columns} for name in wanted}
    texts = {name: [i for i, column in enumerate(columns) if types[name][column] == "TEXT"] for name, columns in wanted.items()}
    for table, rows in TableLoader(recording, wanted, start_ns, end_ns).batches():
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


def how_to_open(form: str, path: str) -> str:
    """Words about how an export is opened; empty for a plug-in's."""
    return FORMATS.get(form, "").format(quote(path))


def formats() -> tuple[str, ...]:
    """`FORMATS`, followed by the formats of plug-ins (docs/plugins.md)."""
    return (*FORMATS, *(one.name for one in plugins(EXPORTS) if one.name not in FORMATS))


def writer(form: str) -> Callable[..., None]:
    """The ``write`` of a format; only its module is imported. UserError for a plug-in that is broken."""
    if form not in FORMATS:
        return _plugged(next(one for one in plugins(EXPORTS) if one.name == form))
    found: Callable[..., None] = importlib.import_module(f"gputop.tables.export_{form}").write
    return found


def _plugged(plugin: Plugin) -> Callable[..., None]:
    """The ``write`` of a plug-in, with errors of one line."""

    def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
        try:
            found = load(plugin)
            if not callable(found):
                raise TypeError(f"{plugin.attribute} cannot be called")
            found(recording, output, start_ns, end_ns)
        except (UserError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - another author's code
            raise UserError(f"the plug-in {plugin.name} of {plugin.package}: {type(error).__name__}: {error}") from None

    return write
