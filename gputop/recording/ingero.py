"""Ingero's SQLite traces as frames, as far as their data goes.

Taken over: CUDA calls with count, total and longest time (``events``, and ``event_aggregates`` for minutes of which not every event
was kept), names and ranks of processes, host CPU, memory and load (``system_snapshots``), TCP retransmits, and its findings
(``causal_chains``), with what it recommends, as markers. Not taken over: ``sched_switch``, whose off-CPU time does not say what was
waited for.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import quote

import msgspec

from gputop.model.frame import CpuSample, CudaCall, Frame, Gpu, Header, Host, Mark, Probes, ProcInfo, SourceState
from gputop.model.stream import IMPORTED
from gputop.recording.scan import open_regular
from gputop.system.errors import UserError
from gputop.system.program import __version__
from gputop.system.text import clean, counted

TICK_NS = 100_000_000
KEY_EVERY = 100
MINUTE_NS = 60_000_000_000
MEGABYTE = 1 << 20
_Key = tuple[int, str]  # pid, CUDA entry point
_NAMES = {"cudaStreamSync": "cudaStreamSynchronize", "cudaDeviceSync": "cudaDeviceSynchronize"}
_UNREAD = dict.fromkeys(
    ("util_pct", "power_w", "mem_used_bytes", "temp_c", "sm_clock_mhz", "pcie_rx_bytes_per_s"), "Ingero does not record it",
)  # fmt: skip
_OP = "coalesce(o.name, 'operation ' || o.op_id) op"
_EVENTS = f"""SELECT e.timestamp t, e.pid, {_OP}, 1 calls, e.duration total, e.duration longest FROM events e
    JOIN ops o ON o.source_id = e.source AND o.op_id = e.op WHERE e.source IN (1, 4)"""
_CALLS = f"""{_EVENTS} AND NOT EXISTS (SELECT 1 FROM event_aggregates a WHERE a.source = e.source AND a.op = e.op AND a.pid = e.pid
      AND a.bucket = e.timestamp - e.timestamp % :minute AND a.stored < a.count)
  UNION ALL SELECT CASE typeof(a.bucket) WHEN 'integer' THEN a.bucket + :minute - 1 END, a.pid, {_OP}, a.count, a.sum_dur, a.max_dur
    FROM event_aggregates a JOIN ops o ON o.source_id = a.source AND o.op_id = a.op WHERE a.source IN (1, 4) AND a.stored < a.count
    ORDER BY 1"""
_RETRANSMITS = "SELECT timestamp t FROM events WHERE source = 6 ORDER BY 1"
_SNAPSHOTS = "SELECT timestamp t, cpu_pct, mem_pct, mem_avail, load_avg FROM system_snapshots ORDER BY 1"
_CHAINS = """SELECT detected_at t, coalesce(severity || ': ', '') || summary text, {advice} advice FROM causal_chains ORDER BY 1"""
_TIMES = {"events": "timestamp", "event_aggregates": "bucket", "system_snapshots": "timestamp", "causal_chains": "detected_at"}
_MOST = 1 << 50  # of a time taken, in ns: sums of such stay far below 64 bits
_MOST_MB = 1 << 40
_RANGES: dict[str, tuple[int, int]] = {
    "pid": (1, 1 << 31), "calls": (0, _MOST), "total": (0, _MOST), "longest": (0, _MOST),
    "cpu_pct": (0, 100), "mem_pct": (0, 100), "mem_avail": (0, _MOST_MB), "load_avg": (0, 1 << 20),
}  # fmt: skip
"""Least and most of a column's numbers."""
_REAL = {"cpu_pct", "mem_pct", "load_avg"}
_OPTIONAL = {"load_avg", "advice", "rank", "world"}
_AROUND_NS = 366 * 86_400_000_000_000  # no trace reaches farther from its middle
_WORDS = {"call": "CUDA call", "retransmit": "TCP retransmit", "snapshot": "host snapshot", "chain": "finding"}


class LeftOut(msgspec.Struct, frozen=True):
    """The rows that are not in the recording, for their numbers or times cannot be: of what, how many."""

    rows: dict[str, int]

    def __str__(self) -> str:
        kinds = ", ".join(counted(count, _WORDS[kind]) for kind, count in self.rows.items())
        return f"left out {counted(sum(self.rows.values()), 'row')} whose numbers or times cannot be: {kinds}"


def read(path: str) -> Iterator[Header | Frame | LeftOut]:
    """A header, then the frames, and what was left out if anything was. Raises UserError where ``path`` is no such trace."""
    try:
        with open(open_regular(path), "rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                raise UserError(f"{clean(path)} is no SQLite database")
        with closing(_open(path)) as database:
            database.row_factory = sqlite3.Row
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            yield from _Trace(database).frames()
    except OSError as error:
        raise UserError(f"cannot open {clean(path)}: {error.strerror}") from None
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{clean(path)} is no trace of Ingero that can be read: {clean(str(error))}") from None


def _open(path: str) -> sqlite3.Connection:
    """With what is in its write-ahead log, which Ingero keeps while it runs; where SQLite may not make the index to that (a folder that
    is not ours to write), without one. Raises UserError where there is a log that cannot be read."""
    with suppress(sqlite3.OperationalError):
        database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)
        database.execute("SELECT count(*) FROM sqlite_master")
        return database
    if os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal"):
        raise UserError(f"{clean(path)} has a log of what is newest beside it that cannot be read there: copy both to a folder of yours")
    return sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)


class _Trace:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._tables = {row["name"] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"events", "ops"} <= self._tables:
            raise ValueError("it has no tables events and ops")
        self._call_sql = _CALLS if "event_aggregates" in self._tables else _EVENTS + " ORDER BY 1"
        self._calls: dict[_Key, CudaCall] = {}
        self._host: list[int] = [0, 0]  # busy and idle ns so far
        self._snapshot_ns = 0
        self._retransmits = 0
        self._left_out: Counter[str] = Counter()
        self._middle_ns = self._middle()

    def frames(self) -> Iterator[Header | Frame | LeftOut]:
        """All of it, a tick of `TICK_NS` at a time; ticks in which nothing happened are left out."""
        session, start = self._session(), self._first_ns()
        self._left_out.clear()  # what came before the first is met again
        yield Header(
            gputop=__version__, host=str(session.get("node") or ""), kernel=str(session.get("kernel") or ""), t_ns=start, unix_ns=start,
            interval_ns=TICK_NS, cpus=_whole(session.get("cpu_cores")) or 1, memory_bytes=_whole(session.get("mem_total")) * MEGABYTE,
        )  # fmt: skip
        infos, gpus = self._infos(start), self._gpus(session, start)
        version = {"ingero": str(session.get("ingero_ver") or "")}
        state = SourceState("import", "partial", IMPORTED, "", version)
        # Counters begin at 0, or what happened in the first tick would be nobody's growth.
        called = filter(_is_sound, self._rows(f"SELECT DISTINCT pid, op FROM ({self._call_sql})"))
        self._calls = {key: CudaCall(*key, 0, 0, 0) for key in map(_key, called)}
        yield Frame(0, start, key=True, infos=infos, gpus=gpus, sources=[state], probes=Probes(start, calls=list(self._calls.values())))
        for seq, (tick, rows) in enumerate(self._ticks(), 1):
            frame = Frame(seq, (tick + 1) * TICK_NS, key=seq % KEY_EVERY == 0)
            if frame.key:
                frame.infos, frame.gpus, frame.sources = infos, gpus, [state]
            self._fill(frame, rows)
            yield frame
        if self._left_out:
            yield LeftOut(dict(self._left_out))

    def _fill(self, frame: Frame, rows: list[tuple[str, sqlite3.Row]]) -> None:
        restated = self._calls if frame.key else {}
        changed = {key: CudaCall(*key, call.count, call.total_ns, 0) for key, call in restated.items()}
        for kind, row in rows:
            if kind == "call":
                changed.update([self._call(row, changed)])
            elif kind == "snapshot":
                frame.host = self._snapshot(row, frame.host)
            elif kind == "chain":
                frame.marks.append(Mark(frame.t_ns, _words(row)))
            else:
                self._retransmits += 1
                frame.host = Host(frame.t_ns, tcp_retrans=self._retransmits) if frame.host is None else frame.host
        self._calls.update(changed)
        if changed:
            frame.probes = Probes(frame.t_ns, calls=list(changed.values()))

    def _call(self, row: sqlite3.Row, changed: dict[_Key, CudaCall]) -> tuple[_Key, CudaCall]:
        key = _key(row)
        before = changed.get(key) or self._calls.get(key) or CudaCall(*key, 0, 0, 0)
        longest = max(row["longest"], before.max_ns if key in changed else 0)
        return key, CudaCall(*key, before.count + row["calls"], before.total_ns + row["total"], longest)

    def _snapshot(self, row: sqlite3.Row, before: Host | None) -> Host:
        """One made-up CPU that stands for all: its load is what Ingero measured of the whole host."""
        span = min(row["t"] - self._snapshot_ns, 2 * 10**9) if self._snapshot_ns else 10**9
        self._snapshot_ns = row["t"]
        busy = round(span * row["cpu_pct"] / 100)
        self._host = [self._host[0] + busy, self._host[1] + span - busy]
        available = row["mem_avail"] * MEGABYTE
        total = round(available / (1 - row["mem_pct"] / 100)) if row["mem_pct"] < 100 else None
        return Host(
            row["t"], [CpuSample(0, self._host[0], 0, self._host[1], 0, 0, 0)], load1=row["load_avg"], mem_total_bytes=total,
            mem_available_bytes=available, tcp_retrans=before.tcp_retrans if before else self._retransmits,
        )  # fmt: skip

    def _ticks(self) -> Iterator[tuple[int, list[tuple[str, sqlite3.Row]]]]:
        """What happened, by tick."""
        import heapq

        chains = _CHAINS.format(advice="recommendations" if "recommendations" in self._columns("causal_chains") else "NULL")
        streams = [self._stream("call", self._call_sql, "events"), self._stream("retransmit", _RETRANSMITS, "events"),
                   self._stream("snapshot", _SNAPSHOTS, "system_snapshots"), self._stream("chain", chains, "causal_chains")]  # fmt: skip
        tick = -1
        rows: list[tuple[str, sqlite3.Row]] = []
        for t_ns, kind, row in heapq.merge(*streams, key=lambda item: item[0]):
            if t_ns // TICK_NS != tick and rows:
                yield tick, rows
                rows = []
            tick = t_ns // TICK_NS
            rows.append((kind, row))
        if rows:
            yield tick, rows

    def _stream(self, kind: str, sql: str, needs: str) -> Iterator[tuple[int, str, sqlite3.Row]]:
        if needs in self._tables:
            for row in self._rows(sql):
                t_ns = row["t"]
                if isinstance(t_ns, int) and 0 < t_ns < 1 << 62 and abs(t_ns - self._middle_ns) < _AROUND_NS and _is_sound(row):
                    yield t_ns, kind, row
                else:
                    self._left_out[kind] += 1

    def _rows(self, sql: str) -> sqlite3.Cursor:
        return self._database.execute(sql, {"minute": MINUTE_NS} if ":minute" in sql else {})

    def _columns(self, table: str) -> set[str]:
        return {row["name"] for row in self._database.execute(f"PRAGMA table_info({table})")}

    def _session(self) -> dict[str, Any]:
        if "sessions" not in self._tables:
            return {}
        row = self._database.execute("SELECT * FROM sessions ORDER BY started_at LIMIT 1").fetchone()
        return dict(row) if row else {}

    def _middle(self) -> int:
        """The median of all times, 0 where there are none: one clock that was wrong for a while is far from it."""
        times = " UNION ALL ".join(f"SELECT {name} t FROM {table} WHERE typeof({name}) = 'integer' AND {name} > 0"
                                   for table, name in _TIMES.items() if table in self._tables)  # fmt: skip
        row = self._database.execute(f"SELECT t FROM ({times}) ORDER BY t LIMIT 1 OFFSET (SELECT count(*) / 2 FROM ({times}))").fetchone()
        return int(row["t"]) if row else 0

    def _first_ns(self) -> int:
        first = [item[0] for item in (next(self._ticks(), None),) if item]
        if not first:
            raise ValueError("it holds no events")
        return first[0] * TICK_NS

    def _infos(self, start: int) -> list[ProcInfo]:
        """Who called CUDA, and everybody whose name is known. Start times are not in the trace; the trace's stands for them."""
        columns = self._columns("events")
        rank, world = ("rank" if "rank" in columns else "NULL"), ("world_size" if "world_size" in columns else "NULL")
        sql = f"SELECT pid, max(source IN (1, 4)) cuda, max({rank}) rank, max({world}) world FROM events GROUP BY pid"
        names = self._names()
        infos = []
        for row in filter(_is_sound, self._database.execute(sql)):
            env = {name: str(row[key]) for name, key in (("RANK", "rank"), ("WORLD_SIZE", "world")) if row[key] is not None}
            name = names.get(row["pid"], "")
            command = [name or f"pid {row['pid']}"] if name or row["cuda"] else []
            infos.append(ProcInfo(row["pid"], start // 10**7, comm=name, cmdline=command, env=env, uses_cuda=bool(row["cuda"])))
        return infos

    def _names(self) -> dict[int, str]:
        if "process_names" not in self._tables:
            return {}
        return {row["pid"]: str(row["name"]) for row in self._database.execute("SELECT pid, name FROM process_names WHERE name <> ''")}

    def _gpus(self, session: dict[str, Any], start: int) -> list[Gpu]:
        name = str(session.get("gpu_model") or "")
        return [Gpu(0, start, name=name, missing=_UNREAD)] if name else []


def _is_sound(row: sqlite3.Row) -> bool:
    """Whether what a row is about is there and can be."""
    return all(_can_be(name, row[name]) for name in row.keys())  # noqa: SIM118 - a row yields its values


def _can_be(name: str, value: object) -> bool:
    if value is None or name not in _RANGES:
        return value is not None or name in _OPTIONAL
    least, most = _RANGES[name]
    return isinstance(value, (int, float) if name in _REAL else int) and least <= value <= most


def _whole(value: object) -> int:
    """0 for what is no number that can be."""
    return value if isinstance(value, int) and 0 < value < _MOST_MB else 0


def _key(row: sqlite3.Row) -> _Key:
    return row["pid"], _NAMES.get(row["op"], str(row["op"]))


def _words(finding: sqlite3.Row) -> str:
    """What a finding says, and what Ingero recommends: a JSON list."""
    try:
        advice = msgspec.json.decode(str(finding["advice"] or "[]"), type=list[str])
    except msgspec.MsgspecError:
        advice = []
    return "; ".join((f"Ingero {finding['text']}", *advice))[:200]
