"""A directory with a Parquet file per table; needs pyarrow, the extra ``parquet``."""

from __future__ import annotations

import os
from typing import Any

from gputop.errors import UserError
from gputop.exports.rows import Row
from gputop.exports.rows import batches
from gputop.exports.rows import new_directory
from gputop.recording.reader import Recording
from gputop.tables.schema import TABLES


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """See `gputop.exports`."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'gputop-ebpf[parquet]'") from None
    types = {"INTEGER": pyarrow.int64(), "REAL": pyarrow.float64(), "TEXT": pyarrow.string()}
    new_directory(output)
    writers: dict[str, Any] = {}
    for name, spec in TABLES.items():
        shape = pyarrow.schema([pyarrow.field(c.name, types[c.type], metadata={"help": c.help}) for c in spec.columns])
        writers[name] = pyarrow.parquet.ParquetWriter(os.path.join(output, f"{name}.parquet"), shape, compression="zstd")
    try:
        for name, rows in batches(recording, start_ns, end_ns):
            if rows:
                writers[name].write_table(_table(rows, writers[name].schema))
    finally:
        for writer in writers.values():
            writer.close()


def _table(rows: list[Row], shape: Any) -> Any:
    import pyarrow

    columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), shape, strict=True)]
    return pyarrow.Table.from_arrays(columns, schema=shape)
