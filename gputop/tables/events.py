"""Events, one row each, made of counts when a statement asks for them.

A recording holds counts per tick. The table `tally` has them by tick, process and operation; the view `events` gives as many rows as there
were events, so that COUNT and SUM are exact. One row has the longest time, the others share the rest.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from msgspec import Struct

from gputop.tables.derived import OFFCPU, SWITCHES, WAITS, of_threads, offcpu_ns
from gputop.tables.rows import Rows
from gputop.tables.schema import TALLY

TALLIED = {
    "procs.pid", "procs.oncpu_ns", "procs.vol", "procs.invol", "probes.calls.pid", "probes.calls.call", "probes.calls.count",
    "probes.calls.total_ns", "probes.calls.max_ns",
}  # fmt: skip
"""Fields of frames that `Tally` reads, in addition to `ProbedThreads`' own."""
SWITCH = "sched_switch"
DIGITS = 4096  # rows of the table of numbers; an event's number within its tick has two such digits
MOST_DIGITS = 1 << 20
_NAMES = {
    "StreamSynchronize": "StreamSync", "EventSynchronize": "EventSync", "CtxSynchronize": "DeviceSync", "DeviceSynchronize": "DeviceSync",
}  # fmt: skip
_CALL = re.compile(r"cu(?:da)?([A-Z]\w*)")
_DIRECTION = re.compile(r"^Memcpy[HDA]to[HDA]")  # of driver calls; the runtime has one call for all


class SqlView(Struct, frozen=True):
    """A view: its columns (name, type, meaning), and the SELECT that makes them."""

    name: str
    help: str
    columns: tuple[tuple[str, str, str], ...]
    select: str


VIEWS = {view.name: view for view in (
    SqlView("events", "a row for each context switch and each CUDA call that is probed; made of `tally`, which is quicker for long spans. "
         "COUNT and SUM are exact; one row of a tick has the longest time, the others share the rest", (
        ("timestamp", "INTEGER", "time of its tick, CLOCK_MONOTONIC ns"),
        ("pid", "INTEGER", "process"),
        ("op", "TEXT", "as in tally"),
        ("duration_ns", "INTEGER", "time off a CPU after the switch, or in the call, ns"),
        ("unix_s", "REAL", "time of its tick, s since 1970"),
        ("t_s", "REAL", "time of its tick, s since the recording began"),
    ), f"""SELECT t_ns, pid, op, CASE WHEN high.n + low.n = 0 THEN max_ns ELSE (total_ns - max_ns) / (times - 1)
    + (high.n * {DIGITS} + low.n <= (total_ns - max_ns) % (times - 1)) END, unix_s, t_s
  FROM tally CROSS JOIN number high ON high.n <= (times - 1) / {DIGITS}
    CROSS JOIN number low ON low.n <= min({DIGITS - 1}, times - 1 - high.n * {DIGITS})"""),
    SqlView("process_names", "the latest name of each pid", (
        ("pid", "INTEGER", "process"), ("name", "TEXT", "its name (comm)"),
    ), "SELECT pid, name FROM (SELECT pid, name, max(t_ns) FROM process GROUP BY pid)"),
)}  # fmt: skip


def view_statement(view: SqlView) -> str:
    """The CREATE VIEW of a view."""
    return f"CREATE VIEW {view.name}({', '.join(name for name, _, _ in view.columns)}) AS {view.select}"


def create_views(sqlite: sqlite3.Connection) -> None:
    """Make the views, and the table of numbers that `events` counts with, empty."""
    sqlite.execute("CREATE TABLE number(n INTEGER PRIMARY KEY)")
    for view in VIEWS.values():
        sqlite.execute(view_statement(view))


def fill_numbers(sqlite: sqlite3.Connection) -> None:
    """Fill the table of numbers for the rows of `tally`, and index these by time: so `events` finds its end and a span."""
    (most,) = sqlite.execute("SELECT max(times) FROM tally").fetchone()
    count = min(max(DIGITS, (most or 0) // DIGITS + 1), MOST_DIGITS)
    sqlite.executemany("INSERT INTO number VALUES(?)", ((n,) for n in range(count)))
    sqlite.execute("CREATE INDEX tally_time ON tally(t_ns)")


@lru_cache(maxsize=1024)
def operation(call: str) -> str:
    """The name of a CUDA driver call as events have it: the name of the runtime's call, shortened (``cudaStreamSync``)."""
    found = _CALL.fullmatch(call)
    return f"cuda{_NAMES.get(found[1]) or _DIRECTION.sub('Memcpy', found[1])}" if found else call


class _ProcessSwitches:
    """The switches of a process in one tick, and its time off a CPU up to the next tick that has some."""

    __slots__ = ("count", "longest_ns", "moment", "total_ns")

    def __init__(self) -> None:
        self.moment: tuple[Any, ...] = ()
        self.count = 0
        self.total_ns: int | None = 0
        self.longest_ns = 0


class Tally:
    """Makes the rows of `tally` from rows of `proc` and of CUDA calls."""

    def __init__(self, wanted: Sequence[str], inside: Callable[[int], bool]) -> None:
        """``wanted`` are the columns; ``inside(tick)`` is True for ticks to be included."""
        places = [[column.name for column in TALLY.columns].index(name) for name in wanted]
        self._choose: Callable[[tuple[Any, ...]], Any] = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
        self._inside = inside
        self._pending: dict[tuple[int, int], _ProcessSwitches] = {}  # (pid, start_ticks) -> the latest tick with switches

    def calls(self, rows: Rows) -> Iterator[tuple[Any, ...]]:
        """Rows of CUDA calls."""
        columns = rows.gauge("pid"), rows.gauge("call"), rows.increment("count"), rows.increment("total_ns"), rows.gauge("max_ns")
        for moment, pid, call, count, total, longest in zip(_moments(rows), *columns, strict=True):
            if count and total is not None and self._inside(moment[0]):
                yield self._row(moment, pid, operation(call), count, total, longest)

    def switches(self, rows: Rows) -> Iterator[tuple[Any, ...]]:
        """Rows of switches; their numbers may be read when the counts of threads are settled.

        All threads count where the sched probe knows the process, else the main thread. Time off a CPU is booked with the switch that began
        it, so a tick without a switch adds to the one before."""
        main, offcpu = rows.total("vol", "invol"), offcpu_ns(rows)
        columns = of_threads(rows, SWITCHES), of_threads(rows, OFFCPU), of_threads(rows, WAITS), main, offcpu
        return self._switch_rows(zip(_moments(rows), rows.gauge("pid"), rows.gauge("start_ticks"), *columns, strict=True))

    def rest(self) -> Iterator[tuple[Any, ...]]:
        """Rows that were waiting for a later tick."""
        for (pid, _), switches in self._pending.items():
            if switches.count:
                yield self._row(switches.moment, pid, SWITCH, switches.count, switches.total_ns, switches.longest_ns)
        self._pending.clear()

    def _switch_rows(self, rows: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        pending, inside = self._pending, self._inside
        for moment, pid, start_ticks, count, total, longest, main_count, main_total in rows:
            if count is None:
                count, total = main_count, main_total
            if count is None or not inside(moment[0]):
                continue
            switches = pending.get((pid, start_ticks))
            if switches is None:
                switches = pending[pid, start_ticks] = _ProcessSwitches()
            if count:
                if switches.count:
                    yield self._row(switches.moment, pid, SWITCH, switches.count, switches.total_ns, switches.longest_ns)
                    switches.total_ns, switches.longest_ns = 0, 0
                switches.moment, switches.count = moment, count
            if total is None:
                switches.total_ns = None
            elif switches.total_ns is not None:
                switches.total_ns += total
            if longest and longest > switches.longest_ns:
                switches.longest_ns = longest

    def _row(self, moment: tuple[Any, ...], pid: int, op: str, count: int, total: int | None, longest: int) -> tuple[Any, ...]:
        if total is not None:
            longest = min(max(longest, -(-total // count)), total)  # no less than the mean: the longest wait for a CPU may be
        row: tuple[Any, ...] = self._choose((*moment, pid, op, count, total, None if total is None else longest))
        return row


def _moments(rows: Rows) -> Iterator[tuple[Any, ...]]:
    """(t_ns, unix_s, t_s) of each row."""
    return zip(*(column.make(rows) for column in TALLY.columns[:3]), strict=True)
