"""A directory with a CSV file per table."""

from __future__ import annotations

import csv
import os

from gputop.exports.rows import batches
from gputop.exports.rows import new_directory
from gputop.recording.output import create
from gputop.recording.reader import Recording
from gputop.tables.schema import TABLES


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """See `gputop.exports`."""
    new_directory(output)
    files = {name: os.fdopen(create(os.path.join(output, f"{name}.csv")), "w", newline="") for name in TABLES}
    try:
        writers = {name: csv.writer(file, lineterminator="\n") for name, file in files.items()}
        for name, spec in TABLES.items():
            writers[name].writerow([column.name for column in spec.columns])
        for name, rows in batches(recording, start_ns, end_ns):
            writers[name].writerows(rows)
    finally:
        for file in files.values():
            file.close()
