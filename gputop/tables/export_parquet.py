"""Parquet files for DuckDB, Spark or ClickHouse: ``OUT/TABLE/host=HOST/date=DATE/RECORDING.parquet``. Needs pyarrow (extra ``parquet``).

Recordings of other hosts and days may be added to the same directory. ``date`` is of UTC, and RECORDING is when it began.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import AbstractContextManager, ExitStack
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.install import missing
from gputop.system.output import create, new_directory
from gputop.system.text import clean
from gputop.tables.database import within_64_bits
from gputop.tables.exports import Row, batches
from gputop.tables.schema import TABLES

DAY_S = 86_400
UNIX_S = 1  # the place of ``unix_s`` in each row
MOST_HOST = 64  # characters of a host's name


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """Write the tables (see `gputop.tables.exports`)."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing("gputop export --to parquet", "parquet") from None
    types = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    shapes = {
        name: pyarrow.schema([pyarrow.field(c.name, types[c.type], metadata={"help": c.help}) for c in spec.columns])
        for name, spec in TABLES.items()
    }
    began_s = recording.unix_ns_of(recording.start_ns) // 10**9
    file_name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began_s))}-{quote(recording.header.boot_id[:8], safe='')}.parquet"
    host = quote(clean(recording.header.host, MOST_HOST), safe="") or "unknown"
    writers: dict[tuple[str, int], Any] = {}

    def writer(name: str, day: int) -> Any:
        if (name, day) not in writers:
            folder = os.path.join(part, name, f"host={host}", f"date={time.strftime('%Y-%m-%d', time.gmtime(day * DAY_S))}")
            os.makedirs(folder, 0o700, exist_ok=True)
            file = files.enter_context(os.fdopen(create(os.path.join(folder, file_name)), "wb"))
            writers[name, day] = files.enter_context(pyarrow.parquet.ParquetWriter(file, shapes[name], compression="zstd"))
        return writers[name, day]

    with _place(output) as part:
        with ExitStack() as files:
            for name in TABLES:  # a table without a row can be asked, too
                writer(name, began_s // DAY_S)
            for name, rows in batches(recording, start_ns, end_ns):
                for day, of_day in _by_day(rows).items():
                    writer(name, day).write_table(_table(of_day, shapes[name]))
        if os.path.dirname(part) == output:
            _add(part, output)


def _place(output: str) -> AbstractContextManager[str]:
    """Folder in which the files are written: one that becomes ``output``, or a hidden one in it if it holds other recordings already."""
    if os.path.islink(output) or not os.path.isdir(output) or not TABLES.keys() >= set(os.listdir(output)):
        return new_directory(output)
    return TemporaryDirectory(prefix=".", dir=output)


def _add(part: str, output: str) -> None:
    """Move the files into the folders of other recordings."""
    found = [os.path.relpath(os.path.join(path, name), part) for path, _folders, names in os.walk(part) for name in names]
    for name in found:
        if os.path.lexists(os.path.join(output, name)):
            raise UserError(f"{clean(output)} has {clean(name)} already: remove it, or give another name with -o")
    for name in found:
        os.makedirs(os.path.dirname(os.path.join(output, name)), 0o700, exist_ok=True)
        os.rename(os.path.join(part, name), os.path.join(output, name))


def _by_day(rows: list[Row]) -> dict[int, list[Row]]:
    """Rows by their day of UTC, counted from 1970."""
    days: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        days[int(row[UNIX_S] // DAY_S)].append(row)
    return days


def _table(rows: list[Row], shape: Any) -> Any:
    import pyarrow

    try:
        columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), shape, strict=True)]
    except OverflowError:
        return _table([within_64_bits(row) for row in rows], shape)
    return pyarrow.Table.from_arrays(columns, schema=shape)
