"""A directory with a Parquet file per table; needs pyarrow (the extra ``parquet``)."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.output import create, new_directory
from gputop.tables.database import within_64_bits
from gputop.tables.exports import Row, batches
from gputop.tables.schema import TABLES


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """Write the tables (see `gputop.tables.exports`)."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow, beside gputop: pip install pyarrow, or pipx inject gputop-ebpf pyarrow") from None
    types = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    writers: dict[str, Any] = {}
    with new_directory(output) as part, ExitStack() as files:
        for name, spec in TABLES.items():
            shape = pyarrow.schema([pyarrow.field(c.name, types[c.type], metadata={"help": c.help}) for c in spec.columns])
            file = files.enter_context(os.fdopen(create(os.path.join(part, f"{name}.parquet")), "wb"))
            writers[name] = files.enter_context(pyarrow.parquet.ParquetWriter(file, shape, compression="zstd"))
        for name, rows in batches(recording, start_ns, end_ns):
            if rows:
                writers[name].write_table(_table(rows, writers[name].schema))


def _table(rows: list[Row], shape: Any) -> Any:
    import pyarrow

    try:
        columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), shape, strict=True)]
    except OverflowError:
        return _table([within_64_bits(row) for row in rows], shape)
    return pyarrow.Table.from_arrays(columns, schema=shape)
