"""A directory with a CSV file per table; a spreadsheet computes none of its texts."""

from __future__ import annotations

import csv
import os
from contextlib import ExitStack

from gputop.recording.reader import Recording
from gputop.system.output import create, new_directory
from gputop.system.text import csv_cell
from gputop.tables.exports import batches
from gputop.tables.schema import TABLES


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """Write the tables (see `gputop.tables.exports`)."""
    with new_directory(output) as part, ExitStack() as files:
        writers = {}
        for name, spec in TABLES.items():
            file = files.enter_context(os.fdopen(create(os.path.join(part, f"{name}.csv")), "w", encoding="utf-8", newline=""))
            writers[name] = csv.writer(file, lineterminator="\n")
            writers[name].writerow([column.name for column in spec.columns])
        for name, rows in batches(recording, start_ns, end_ns):
            writers[name].writerows([csv_cell(value) for value in row] for row in rows)
