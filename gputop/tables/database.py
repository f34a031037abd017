"""A recording in SQLite: only what a statement reads is loaded, and a statement can do nothing but read."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from gputop.recording.reader import Recording
from gputop.system.errors import UserError
from gputop.system.text import clean
from gputop.tables.load import Batch, Loader, Wanted
from gputop.tables.schema import TABLES, TableSpec

MAX_ROWS = 40_000_000
"""Loaded for one statement."""
CACHE_KIB = 150_000
MOST_BYTES = 64 << 20
"""Of a value, or of a row."""
MOST_PARAMETERS = 500
"""Of one statement: some builds of SQLite allow 999."""
WORTH_A_CALL = 20_000
"""Values of a table that are inserted together."""
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}
"""33 is SQLITE_RECURSIVE, which the module has no name for."""
_JSON_READERS = "json_each", "json_tree"
"""What makes rows of a JSON column. SQLite makes a table for each when it is first used, which the authorizer would not allow."""
ONLY_SELECT = "a recording is only read: SELECT is all that may be asked of it"
_FORBIDDEN_FUNCTIONS = {"load_extension"}


class Database:
    """A recording, or the part of it from ``start_ns`` up to ``end_ns``, to be asked in SQL. Everything raises UserError."""

    def __init__(self, recording: Recording, start_ns: int = 0, end_ns: int = 1 << 62) -> None:
        self._recording = recording
        self._range = start_ns, end_ns
        # A private file that SQLite keeps in memory as far as its cache goes, and that is gone when we are.
        self._sqlite = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", f"cache_size=-{CACHE_KIB}"):
            self._sqlite.execute(f"PRAGMA {pragma}")
        for spec in TABLES.values():
            self._sqlite.execute(create_statement(spec))
        for reader in _JSON_READERS:
            with suppress(sqlite3.OperationalError):  # some builds of SQLite have none
                self._sqlite.execute(f"SELECT 1 FROM {reader}('[]')")
        if sys.version_info >= (3, 11):
            self._sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        # Python hears Ctrl-C between two steps of a statement that would never end.
        self._sqlite.set_progress_handler(lambda: 0, 100_000)

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
        """The names of the columns of the answer, and its rows."""
        self._load(self._reads(sql))
        self._sqlite.set_authorizer(lambda *asked: _permit(asked, {}))
        try:
            cursor = self._sqlite.execute(sql)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            raise _refusal(error) from None
        if cursor.description is None:
            raise UserError(ONLY_SELECT, code=2)
        return [column[0] for column in cursor.description], _rows(cursor)

    def _reads(self, sql: str) -> Wanted:
        """The tables and columns that the statement reads; UserError where it would do anything else, or is none."""
        read: dict[str, dict[str, None]] = {}
        refused: list[bool] = []

        def authorize(*asked: object) -> int:
            verdict = _permit(asked, read)
            refused.extend([True] * (verdict != sqlite3.SQLITE_OK))
            return verdict

        self._sqlite.set_authorizer(authorize)
        try:
            self._sqlite.execute(f"EXPLAIN {sql}")
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if refused:
                raise UserError(ONLY_SELECT, code=2) from None
            raise _refusal(error) from None
        finally:
            self._sqlite.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
        _note_joins(sql, read)
        known = {table: [column.name for column in TABLES[table].columns] for table in read if table in TABLES}
        return {table: [name for name in names if name in read[table]] or names[:1] for table, names in known.items()}

    def _load(self, wanted: Wanted) -> None:
        for table, names in wanted.items():
            self._sqlite.execute(f"DROP TABLE {table}")
            self._sqlite.execute(create_statement(TABLES[table], names))
        loader, before = Loader(self._recording, wanted, *self._range), self._sqlite.total_changes
        self._sqlite.execute("BEGIN")
        for table, values in gathered(loader.batches()):
            insert(self._sqlite, table, len(wanted[table]), values)
            if self._sqlite.total_changes - before > MAX_ROWS:
                raise UserError(f"this would load more than {MAX_ROWS} rows: ask for less time with --last, or --from and --until")
        self._sqlite.execute("COMMIT")


def create_statement(spec: TableSpec, names: Sequence[str] | None = None) -> str:
    """The table as SQLite is told of it, with the columns in ``names`` only: a row of few columns is made in half the time."""
    columns = [column for column in spec.columns if names is None or column.name in names]
    return f"CREATE TABLE {spec.name}({', '.join(f'{column.name} {column.type}' for column in columns)})"


def gathered(batches: Iterable[Batch]) -> Iterator[tuple[str, list[Any]]]:
    """(table, values of many of its rows, one row behind the other): so they are no tuples that garbage collection would look through."""
    waiting: defaultdict[str, list[Any]] = defaultdict(list)
    for table, rows in batches:
        waiting[table] += chain.from_iterable(rows)
        if len(waiting[table]) >= WORTH_A_CALL:
            yield table, waiting.pop(table)
    yield from waiting.items()


def insert(sqlite: sqlite3.Connection, table: str, width: int, values: Sequence[Any]) -> None:
    """The values of rows of ``width``; many rows by each statement, which takes a third of the time that one by one would."""
    before = sqlite.total_changes
    place, together = f"({','.join('?' * width)})", max(1, MOST_PARAMETERS // width)
    rest = iter(values)
    most = islice(rest, len(values) - len(values) % (together * width))
    try:
        sqlite.executemany(f"INSERT INTO {table} VALUES{','.join([place] * together)}", zip(*[most] * (together * width), strict=True))
        sqlite.executemany(f"INSERT INTO {table} VALUES{place}", zip(*[rest] * width, strict=True))
    except OverflowError:
        insert(sqlite, table, width, within_64_bits(values[width * (sqlite.total_changes - before) :]))


def within_64_bits(values: Iterable[Any]) -> tuple[Any, ...]:
    """The same without numbers that no INTEGER holds: nobody has measured those, they are of recordings that were made up."""
    return tuple(None if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value for value in values)


def describe(tables: Sequence[str] = ()) -> str:
    """These tables, or all, and their columns with type, unit and meaning: the answer to ``.schema``. UserError for one there is not."""
    unknown = next((name for name in tables if name not in TABLES), None)
    if unknown is not None:
        raise UserError(f"there is no table {clean(unknown)}: there are {', '.join(TABLES)}", code=2)
    lines = []
    for spec in (TABLES[name] for name in tables or TABLES):
        lines.append(f"CREATE TABLE {spec.name} (  -- {spec.help}")
        last = spec.columns[-1]
        lines += [f"  {c.name + ' ' + c.type + ('' if c is last else ','):<34}-- {c.help}" for c in spec.columns]
        lines.append(");")
    return "\n".join(lines)


def _note_joins(sql: str, read: dict[str, dict[str, None]]) -> None:
    """USING and NATURAL compare columns of tables that the authorizer is not told of: all that the statement names are noted."""
    words = set(re.findall(r"\w+", sql.lower()))
    if words & {"using", "natural"}:
        for table in (spec for spec in TABLES.values() if spec.name in words):
            columns = [column.name for column in table.columns]
            read.setdefault(table.name, {}).update(dict.fromkeys(columns if "natural" in words else words.intersection(columns)))


def _permit(asked: tuple[object, ...], read: dict[str, dict[str, None]]) -> int:
    """SQLite's authorizer: notes what is read, denies what is not reading."""
    action, first, second = asked[:3]
    if action == sqlite3.SQLITE_READ:
        columns = read.setdefault(str(first).lower(), {})  # as the statement spells it, where no column of it is read
        if second:
            columns[str(second)] = None
    forbidden = action == sqlite3.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS
    return sqlite3.SQLITE_DENY if action not in _ALLOWED or forbidden else sqlite3.SQLITE_OK


def _rows(cursor: sqlite3.Cursor) -> Iterator[tuple[object, ...]]:
    try:
        yield from cursor
    except sqlite3.Error as error:
        raise _refusal(error) from None


def _refusal(error: Exception) -> BaseException:
    """What SQLite says, in our words; its "interrupted" is our Ctrl-C."""
    said = clean(str(error))
    hint = " (.tables and .schema tell what there is)" if said.startswith(("no such table", "no such column")) else ""
    return KeyboardInterrupt() if said == "interrupted" else UserError(f"SQL: {said}{hint}", code=2)
