"""An SQLite database with the tables and views of `gputop query`."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.output import create_file, whole_or_gone
from gputop.tables.database import create_statement, gathered, insert
from gputop.tables.events import create_views, fill_numbers
from gputop.tables.exports import ALL, batches
from gputop.tables.schema import TABLES


def write(recording: Recording, output: str, start_ns: int, end_ns: int) -> None:
    """Write the tables (see `gputop.tables.exports`)."""
    with whole_or_gone(output) as part:
        create_file(part)
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as database:
                _fill(database, recording, start_ns, end_ns)
        except sqlite3.Error as error:
            raise UserError(f"cannot write {output}: {error}") from None


def _fill(database: sqlite3.Connection, recording: Recording, start_ns: int, end_ns: int) -> None:
    database.execute("PRAGMA journal_mode=OFF")
    for spec in TABLES.values():
        database.execute(create_statement(spec))
    create_views(database)
    database.execute("BEGIN")
    for name, values in gathered(batches(recording, start_ns, end_ns)):
        insert(database, name, len(ALL[name]), values)
    fill_numbers(database)
    database.execute("COMMIT")
