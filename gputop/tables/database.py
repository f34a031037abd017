"""A recording in SQLite: only what a statement reads is loaded, and a statement can do nothing but read, within bounds."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count, islice
from typing import Any

from gputop.recording.reader import Recording
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.text import clean
from gputop.tables.events import VIEWS, create_views, fill_numbers
from gputop.tables.load import Batch, TableLoader, Wanted
from gputop.tables.schema import TABLES
from gputop.tables.spec import TableSpec

TIMEOUT_S = 30.0  # of a statement; reading the recording and writing the answer do not count
MAX_ROWS = 40_000_000  # loaded for one statement
MAX_ANSWER_ROWS = 10_000_000
MAX_ANSWER_BYTES = 1 << 30  # texts as UTF-8, other values as 8 bytes
MAX_TEMPORARY_BYTES = 4 << 30  # in temporary files, beyond the tables themselves
MAX_HEAP_BYTES = 768 << 20  # of SQLite, its cache included
CACHE_KIB = 150_000
MAX_VALUE_BYTES = 64 << 20  # of a value, or of a row
MOST_PARAMETERS = 500  # of one statement: some builds of SQLite allow 999
WORTH_A_CALL = 20_000  # values of a table that are inserted together
LOOK_S = 0.05  # how often a running statement is looked at
GRACE_S = 2.0  # an interrupted statement that goes on for so long is in one call of a function, which nothing else can stop
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}
"""33 is SQLITE_RECURSIVE, which the module has no name for."""
_JSON_READERS = "json_each", "json_tree"
"""Table-valued functions; SQLite makes a table for each when it is first used, which the authorizer would not allow."""
ONLY_SELECT = "a recording is read-only: use SELECT"
NO_FUNCTION = "the function {} may not be used: SQLite's scalar, date, aggregate, window, math and JSON functions may"
LESS = "ask for less time (--last, --from, --until), add LIMIT, or sum up in the statement"
_FUNCTIONS = frozenset(
    """
    abs char coalesce concat concat_ws format glob hex if ifnull iif instr length like likelihood likely lower ltrim max min nullif
    octet_length printf quote random randomblob replace round rtrim sign soundex sqlite_version substr substring trim typeof unhex unicode
    unistr unistr_quote unlikely upper zeroblob
    current_date current_time current_timestamp date datetime julianday strftime time timediff unixepoch
    avg count group_concat median percentile percentile_cont percentile_disc string_agg sum total
    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
    acos acosh asin asinh atan atan2 atanh ceil ceiling cos cosh degrees exp floor ln log log10 log2 mod pi pow power radians sin sinh sqrt
    tan tanh trunc
    -> ->> json json_array json_array_length json_error_position json_extract json_group_array json_group_object json_insert json_object
    json_patch json_pretty json_quote json_remove json_replace json_set json_type json_valid subtype
    """.split()  # noqa: SIM905 - to be read
)
"""SQLite's own functions that only compute: without functions of its modules (fts3_tokenizer takes an address in memory), of a build or
of a shell (load_extension, readfile, writefile, edit)."""
_CATALOGUE = ("sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema")


class Database:
    """A recording, or its part from ``start_ns`` up to ``end_ns``, to be queried in SQL. All methods raise UserError."""

    def __init__(
        self, recording: Recording, start_ns: int = 0, end_ns: int = 1 << 62, timeout_s: float = TIMEOUT_S, *, is_alone: bool = True
    ) -> None:
        """``is_alone``: this process does nothing else. All its SQLite is bounded in memory, and a statement that nothing stops ends it."""
        self._recording = recording
        self._range = start_ns, end_ns
        self._timeout_s = timeout_s
        self._is_alone = is_alone
        # A private file that SQLite keeps in memory as far as its cache goes, and that is gone when we are.
        self._sqlite = sqlite3.connect("", isolation_level=None)
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", f"cache_size=-{CACHE_KIB}",
                       *[f"hard_heap_limit={MAX_HEAP_BYTES}"] * is_alone):  # fmt: skip
            self._sqlite.execute(f"PRAGMA {pragma}")
        for spec in TABLES.values():
            self._sqlite.execute(create_statement(spec))
        create_views(self._sqlite)
        own = self._sqlite.execute("SELECT lower(name) FROM sqlite_master")
        self._known = frozenset([*(name for (name,) in own), *_JSON_READERS, *_CATALOGUE])
        for reader in _JSON_READERS:
            with suppress(sqlite3.OperationalError):  # some builds of SQLite have none
                self._sqlite.execute(f"SELECT 1 FROM {reader}('[]')")
        if sys.version_info >= (3, 11):
            self._sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        # Python hears Ctrl-C between two steps of a statement that would never end.
        self._sqlite.set_progress_handler(lambda: 0, 100_000)

    def close(self) -> None:
        """Free what it holds."""
        self._sqlite.close()

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[object, ...]]]:
        """The names of the columns of the answer, and its rows."""
        self._load(self.reads(sql))
        self._sqlite.set_authorizer(lambda *asked: _permit(asked, {}, self._known))
        watch = _StatementLimiter(self._sqlite, self._timeout_s, self._is_alone)
        watch.resume()
        try:
            cursor = self._sqlite.execute(sql)
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            watch.stop()
            raise _refusal(error, watch.problem) from None
        watch.pause()
        if cursor.description is None:
            watch.stop()
            raise UserError(ONLY_SELECT, code=2)
        return [column[0] for column in cursor.description], _rows(cursor, watch)

    def reads(self, sql: str) -> Wanted:
        """Tables and columns that the statement reads; UserError if it would do anything else, or is no statement."""
        read: dict[str, dict[str, None]] = {}
        refused: list[str] = []  # the function, or else nothing

        def authorize(*asked: object) -> int:
            verdict = _permit(asked, read, self._known)
            if verdict != sqlite3.SQLITE_OK:
                refused.append(str(asked[2]) if asked[0] == sqlite3.SQLITE_FUNCTION else "")
            return verdict

        self._sqlite.set_authorizer(authorize)
        try:
            self._sqlite.execute(f"EXPLAIN {sql}")
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if refused:
                raise UserError(NO_FUNCTION.format(clean(refused[0], 60)) if refused[0] else ONLY_SELECT, code=2) from None
            raise _refusal(error) from None
        finally:
            self._sqlite.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
        _add_joins(sql, read)
        known = {table: [column.name for column in TABLES[table].columns] for table in read if table in TABLES}
        return {table: [name for name in names if name in read[table]] or names[:1] for table, names in known.items()}

    def _load(self, wanted: Wanted) -> None:
        for table, names in wanted.items():
            self._sqlite.execute(f"DROP TABLE {table}")
            self._sqlite.execute(create_statement(TABLES[table], names))
        loader, before = TableLoader(self._recording, wanted, *self._range), self._sqlite.total_changes
        self._sqlite.execute("BEGIN")
        for table, values in gathered(loader.batches()):
            insert(self._sqlite, table, len(wanted[table]), values)
            if self._sqlite.total_changes - before > MAX_ROWS:
                raise UserError(f"this would load more than {MAX_ROWS} rows: ask for less time with --last, or --from and --until")
        if {"t_ns", "times"} <= set(wanted.get("tally", ())):
            fill_numbers(self._sqlite)
        self._sqlite.execute("COMMIT")


class _StatementLimiter:
    """Stops a statement that takes too much time or too many temporary files.

    A thread looks every `LOOK_S`, and counts the time in which the statement runs."""

    def __init__(self, sqlite: sqlite3.Connection, timeout_s: float, is_alone: bool) -> None:
        self._is_alone = is_alone
        self.problem = ""  # why the statement was stopped
        self._sqlite, self._timeout_s, self._used_s = sqlite, timeout_s, 0.0
        self._files_before = _temporary_bytes()
        self._running, self._ended = False, threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def pause(self) -> None:
        """The statement waits for its reader."""
        self._running = False

    def resume(self) -> None:
        """The statement runs."""
        self._running = True

    def stop(self) -> None:
        """The statement has ended."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._used_s += LOOK_S * self._running
            if self._used_s >= self._timeout_s:
                self._give_up(f"the statement ran for {self._timeout_s:g} s and was stopped: {LESS}, or give it more time with --timeout")
            elif _temporary_bytes() - self._files_before > MAX_TEMPORARY_BYTES:
                self._give_up(f"the statement needs more than {MAX_TEMPORARY_BYTES >> 30} GiB for intermediate results: {LESS}")

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self._sqlite.interrupt()
        looks = round(GRACE_S / LOOK_S) if self._is_alone else 0  # counted, as the time before: both threads may have stood still
        if looks and not any(self._ended.wait(LOOK_S) for _ in range(looks)) and self._running:
            notify(problem)
            os._exit(1)


def create_statement(spec: TableSpec, names: Sequence[str] | None = None) -> str:
    """CREATE TABLE with the columns in ``names`` only: a row of few columns is made in half the time."""
    columns = [column for column in spec.columns if names is None or column.name in names]
    return f"CREATE TABLE {spec.name}({', '.join(f'{column.name} {column.type}' for column in columns)})"


def gathered(batches: Iterable[Batch]) -> Iterator[tuple[str, list[Any]]]:
    """(table, values of many of its rows, one row behind the other): no tuples, which garbage collection would look through."""
    waiting: defaultdict[str, list[Any]] = defaultdict(list)
    for table, rows in batches:
        waiting[table] += chain.from_iterable(rows)
        if len(waiting[table]) >= WORTH_A_CALL:
            yield table, waiting.pop(table)
    yield from waiting.items()


def insert(sqlite: sqlite3.Connection, table: str, width: int, values: Sequence[Any]) -> None:
    """Insert the values of rows of ``width``, many rows by each statement: that takes a third of the time of one by one."""
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
    """Values with None for integers beyond 64 bits: no source measures those, so the recording was made up."""
    return tuple(None if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value for value in values)


def distinct(names: Sequence[str]) -> list[str]:
    """Names of columns, numbered if they occur twice: a, a_2."""
    keys: list[str] = []
    for name in names:
        keys.append(next(key for key in chain([name], (f"{name}_{i}" for i in count(2))) if key not in keys))
    return keys


def describe(names: Sequence[str] = ()) -> str:
    """The answer to ``.schema``: these tables and views, or all, with type, unit and meaning of each column. UserError for others."""
    known = [*TABLES, *VIEWS]
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise UserError(f"there is no table {clean(unknown)}: there are {', '.join(known)}", code=2)
    lines: list[str] = []
    for name in names or known:
        if name in TABLES:
            spec = TABLES[name]
            kind, told, columns, end = "TABLE", spec.help, [(f"{c.name} {c.type}", c.help) for c in spec.columns], ");"
        else:
            view = VIEWS[name]
            kind, told, end = "VIEW", view.help, f") AS {view.select};"
            columns = [(column, f"{type_}, {meaning}") for column, type_, meaning in view.columns]
        lines.append(f"CREATE {kind} {name} (  -- {told}")
        lines += [f"  {column + ',' * (i < len(columns)):<34}-- {meaning}" for i, (column, meaning) in enumerate(columns, 1)]
        lines.append(end)
    return "\n".join(lines)


def _add_joins(sql: str, read: dict[str, dict[str, None]]) -> None:
    """Add the columns that USING and NATURAL compare: SQLite does not report these to the authorizer."""
    words = set(re.findall(r"\w+", sql.lower()))
    if words & {"using", "natural"}:
        for table in (spec for spec in TABLES.values() if spec.name in words):
            columns = [column.name for column in table.columns]
            read.setdefault(table.name, {}).update(dict.fromkeys(columns if "natural" in words else words.intersection(columns)))


def _permit(asked: tuple[object, ...], read: dict[str, dict[str, None]], known: Collection[str]) -> int:
    """SQLite's authorizer: adds to ``read`` what is read of the tables ``known``, denies everything else."""
    action, first, second = asked[:3]
    allowed = action in _ALLOWED
    if action == sqlite3.SQLITE_READ:
        table = str(first).lower()
        # No column: the statement may have named a table of its own so (WITH).
        allowed = not second or table in known
        columns = read.setdefault(table, {})  # as the statement spells it, if no column of the table is read
        if second:
            columns[str(second)] = None
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = str(second).lower() in _FUNCTIONS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _rows(cursor: sqlite3.Cursor, watch: _StatementLimiter) -> Iterator[tuple[object, ...]]:
    """The rows of the answer, within bounds."""
    rows = size = 0
    try:
        watch.resume()
        for row in cursor:
            rows += 1
            size += sum([len(value) if isinstance(value, str | bytes) else 8 for value in row])
            if rows > MAX_ANSWER_ROWS or size > MAX_ANSWER_BYTES:
                bound = f"{MAX_ANSWER_ROWS} rows" if rows > MAX_ANSWER_ROWS else f"{MAX_ANSWER_BYTES >> 30} GiB"
                raise UserError(f"the answer has more than {bound} and was stopped there: {LESS}, or write the tables with gputop export")
            watch.pause()
            yield row
            watch.resume()
    except (sqlite3.Error, MemoryError) as error:
        raise _refusal(error, watch.problem) from None
    finally:
        watch.stop()


def _temporary_bytes() -> int:
    """Size of SQLite's temporary files (deleted etilqs_… files that this process has open)."""
    size = 0
    with suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if "/etilqs_" in os.readlink(f"/proc/self/fd/{fd}"):
                    size += os.fstat(int(fd)).st_blocks * 512
    return size


def _refusal(error: Exception, problem: str = "") -> BaseException:
    """An error of SQLite in our words. "interrupted" means that the statement was stopped for ``problem``, else by Ctrl-C."""
    if isinstance(error, MemoryError):
        return UserError(f"the statement needs more than {MAX_HEAP_BYTES >> 20} MiB of memory: {LESS}")
    said = clean(str(error))
    if said == "interrupted":
        return UserError(problem) if problem else KeyboardInterrupt()
    hint = " (.tables and .schema list them)" if said.startswith(("no such table", "no such column")) else ""
    return UserError(f"SQL: {said}{hint}", code=2)
