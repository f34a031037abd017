"""Reading the tables, or just the columns that are asked for, out of a recording."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import add
from typing import Any

from gputop.diagnosis import Engine
from gputop.model.roles import program_name
from gputop.recording.columns.decode import Table, open_table
from gputop.recording.columns.encode import encode
from gputop.recording.columns.layout import ColumnError, tick_ns
from gputop.recording.reader import FileBlock, Recording, in_order
from gputop.session.findings import explanation
from gputop.session.judged import judged
from gputop.tables.gaps import Gap, Gaps
from gputop.tables.rows import Known, Rows, rows_below
from gputop.tables.schema import GPU, NS, PROC, TABLES, TableSpec

Wanted = Mapping[str, Sequence[str]]
"""Table -> its columns, in the order in which they are given out."""
Batch = tuple[str, Iterable[tuple[Any, ...]]]
"""Rows of a table, maybe none."""
SETTLED_NS = 2_000_000_000
"""Who is read or told of once a second is so again within so much."""
KNOWN_BEFORE_NS = 60_000_000_000
"""So long before the time the probe is listened to: what a thread stood at is told when it runs, and most run within a minute."""
_NEEDS_NAMES = {"name", "role", "victim", "victim_pid", "culprit", "wakee", "wakee_pid", "waker"}


class Loader:
    """Yields batches of rows from ``start_ns`` up to ``end_ns``."""

    def __init__(self, recording: Recording, wanted: Wanted, start_ns: int = 0, end_ns: int = 1 << 62) -> None:
        self.recording = recording
        self.wanted = wanted
        # Rows have their ticks' times as a recording keeps them: streams that were kept, and what `R` saved, begin a little later.
        self._began_ns = tick_ns(recording.start_ns)
        self.start_ns, self.end_ns = self._began_ns if start_ns <= recording.start_ns else start_ns, end_ns
        self._known = Known(recording.header, self._began_ns)
        self._specs = [TABLES[name] for name in wanted if TABLES[name].path]
        asked = {column for columns in wanted.values() for column in columns}
        self._names = bool(asked & _NEEDS_NAMES) or "process" in wanted
        self._stalls, self._switches = (name in wanted.get("proc", ()) for name in ("stall_ms", "thread_switches"))
        self._settled_ns = SETTLED_NS + 2 * recording.header.interval_ns if self._stalls or self._switches else 0
        self._newest_ns = self._inside_ns = 0
        """The last tick that was read, and that of the last block that is, or begins, inside."""
        self._waiting: deque[tuple[int, Iterator[tuple[Any, ...]]]] = deque()
        """The processes' rows of the latest blocks, and the last tick of each: what the probe tells of them comes later."""
        self._seq: int | None = None
        self._gaps = Gaps(self.start_ns, recording.header.interval_ns)

    def batches(self) -> Iterator[Batch]:
        """All rows, table by table within each block."""
        if self._specs or self._names or "gap" in self.wanted:
            for block in in_order(self._blocks()):
                yield from self._of_block(block)
            yield from self._settled(1 << 62)
        if "gap" in self.wanted:
            yield "gap", self._lost_end()
        if "process" in self.wanted:
            yield "process", self._processes()
        if "incident" in self.wanted:
            yield "incident", self._incidents()

    def _blocks(self) -> Iterator[FileBlock]:
        """Those of the time, and around it what a row there builds upon: what its counters stood at, which a key frame before tells, and
        what the probe tells of its process, which is booked in the row before, in it or in the one behind."""
        chunks = self.recording.chunks()
        known_ns = self.start_ns - (KNOWN_BEFORE_NS if self._settled_ns else 0)
        first = max(0, bisect_left(chunks, known_ns, key=lambda chunk: chunk.t_ns) - 1)
        for i in range(first, len(chunks)):
            for block in chunks[i].blocks():
                if block.t_ns >= self.end_ns and self._newest_ns - self._settled_ns >= self._inside_ns:
                    return
                yield block

    def _of_block(self, block: FileBlock) -> list[Batch]:
        """All rows of a block, or none."""
        try:
            table = _table_of(block)
            return self._of_table(table) if table is not None else []
        except ColumnError:
            block.give_up()
            return []

    def _of_table(self, table: Table) -> list[Batch]:
        ticks = table.column("t_ns")
        if not ticks:
            return []
        self._seq = self.recording.follow(self._seq, table.column("seq"))
        self._known.begun_ns = self._known.begun_ns or ticks[0]
        self._newest_ns = ticks[-1]
        if self._names or self._settled_ns:
            self._learn_threads(table)
        self._known.key_ns = next(compress(ticks, table.column("key")), 0)
        batches = self._rows_of_table(table, ticks[0] < self.end_ns)
        return batches + list(self._settled(self._newest_ns - self._settled_ns))

    def _rows_of_table(self, table: Table, is_inside: bool) -> list[Batch]:
        """Of what is behind the time, only whose rows come next matters to what waits."""
        if is_inside:
            self._inside_ns = self._newest_ns
            self._learn(table)
        specs = [spec for spec in self._specs if is_inside or spec is PROC]
        below = {path: rows_below(table, path, self._known) for path in {spec.path for spec in specs}}
        batches: list[Batch] = []
        for spec in specs:
            rows = self._rows(spec, below[spec.path])
            if spec is PROC and self._settled_ns:
                self._waiting.append((self._newest_ns, rows))
            else:
                batches.append((spec.name, rows))
        if is_inside and "gap" in self.wanted:
            batches.append(("gap", self._gaps_in(table)))
        return batches

    def _settled(self, until_ns: int) -> Iterator[Batch]:
        """The processes' rows of blocks that end by then."""
        if not self._waiting or self._waiting[0][0] > until_ns:
            return
        for told in (self._known.stalls, self._known.switches):
            told.settle(until_ns, self._newest_ns)
        while self._waiting and self._waiting[0][0] <= until_ns:
            yield PROC.name, self._waiting.popleft()[1]

    def _learn(self, table: Table) -> None:
        known = self._known
        if self._names:
            for t_ns, gone, infos, gpus in zip(*map(table.column, ("t_ns", "gone", "infos", "gpus")), strict=True):
                if t_ns < self.start_ns:
                    known.forget(gone)
                known.learn_infos(t_ns, infos)
                known.learn_gpus(gpus)
            known.roles()

    def _learn_threads(self, table: Table) -> None:
        """What the probe tells, also of blocks behind ``end_ns``: that may be of the time before."""
        known = self._known
        probes, threads = rows_below(table, ("probes",), known), rows_below(table, ("probes", "threads"), known)
        told: Iterator[tuple[Any, ...]] = iter(())
        if threads is not None:
            tids, pids = threads.gauge("tid"), threads.gauge("pid")
            known.pid_of.update(zip(tids, pids, strict=True))
            if self._stalls:
                known.stalls.learn(threads.ticks, pids, threads.gauge("max_run_delay_ns"))
            if self._switches:
                counts = map(add, threads.gauge("vol"), threads.gauge("invol"))
                told = zip(threads.ticks, tids, pids, threads.gauge("start_ns"), counts, threads.gauge("state"), strict=True)
        if probes is not None:
            known.switches.learn(probes.ticks, told, known.begun_ns)

    def _rows(self, spec: TableSpec, rows: Rows | None) -> Iterator[tuple[Any, ...]]:
        """Tables that stand at one path share their rows: what a counter grew by is asked of them once."""
        if rows is None:
            return iter(())
        if spec.own_time:
            rows.tell_own_time()
        made = {column.name: column.make for column in spec.columns}
        columns = [made[name](rows) for name in self.wanted[spec.name]]
        chosen: Iterator[tuple[Any, ...]] = zip(*columns, strict=True)
        if spec is GPU:
            return self._merged_gpus(rows, list(chosen))
        keep = spec.keep(rows) if spec.keep else None
        first_ns, last_ns = rows.span_ns
        if first_ns < self.start_ns or last_ns >= self.end_ns:
            inside = [self.start_ns <= t_ns < self.end_ns for t_ns in rows.ticks]
            keep = inside if keep is None else [a and b for a, b in zip(keep, inside, strict=True)]
        return chosen if keep is None else compress(chosen, keep)

    def _merged_gpus(self, rows: Rows, values: list[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """A GPU may be read in parts, one per tier of cost, and several times before a late tick; of a tick they make one row."""
        adds_up = {column.name: column.adds_up for column in GPU.columns}
        adds = [adds_up[name] for name in self.wanted[GPU.name]]
        merged: dict[tuple[int, int], tuple[Any, ...]] = {}
        for key, row in zip(zip(rows.ticks, rows.gauge("index"), strict=True), values, strict=True):
            before = merged.get(key)
            merged[key] = row if before is None else tuple(map(_merged, before, row, adds))
        return (row for (tick, _), row in merged.items() if self.start_ns <= tick < self.end_ns)

    def _gaps_in(self, table: Table) -> Iterator[tuple[Any, ...]]:
        ticks = zip(table.column("t_ns"), table.column("seq"), table.column("missed"), table.column("marks"), strict=True)
        told = [gap for tick in ticks if (gap := self._gaps.tick(*tick))]
        return (self._gap(gap) for gap in told if self.start_ns <= gap.until_ns < self.end_ns)

    def _lost_end(self) -> Iterator[tuple[Any, ...]]:
        """What is damaged up to the end tells of no tick behind it."""
        gap = self._gaps.rest(min(self.end_ns, self.recording.end_ns)) if self.recording.lost else None
        return iter([self._gap(gap)] if gap else ())

    def _gap(self, gap: Gap) -> tuple[Any, ...]:
        row = {"dt_s": (gap.until_ns - gap.since_ns) * NS, "missed": gap.missed, "reason": gap.reason}
        return self._plain("gap", gap.since_ns, row)

    def _plain(self, table: str, t_ns: int, row: dict[str, Any]) -> tuple[Any, ...]:
        recording = self.recording
        row |= {"t_ns": t_ns, "unix_s": recording.unix_ns_of(t_ns) * NS, "t_s": (t_ns - self._began_ns) * NS}
        return tuple(row[name] for name in self.wanted[table])

    def _processes(self) -> Iterator[tuple[Any, ...]]:
        known = self._known
        for subject, (t_ns, info) in known.ever.items():
            role = known.roles_ever.get(subject)
            yield self._plain("process", t_ns, {
                "pid": info.pid, "ppid": info.ppid, "start_ticks": info.start_ticks, "name": info.comm, "cmdline": " ".join(info.cmdline),
                "user": info.user, "role": role.kind if role else "bystander", "trainer_pid": role.trainer_pid if role else None,
                "rank": role.rank if role else None, "label": role.label if role else program_name(info), "cgroup": info.cgroup,
                "cpus_allowed": info.cpus_allowed,
            })  # fmt: skip

    def _incidents(self) -> Iterator[tuple[Any, ...]]:
        """What the diagnosis finds."""
        recording, start, end = self.recording, max(self.start_ns, self.recording.start_ns), min(self.end_ns, self.recording.end_ns + 1)
        found = explanation(recording, start, end)
        if found is None:
            engine = Engine()
            deque(judged(engine, recording, start, end), maxlen=0)
            found = engine.explain()
        for incident in found["incidents"]:
            start_ns = recording.t_ns_of(round(incident["start_unix_s"] * 1e9))
            end_s = incident["end_unix_s"]
            end_ns = end - 1 if end_s is None else recording.t_ns_of(round(end_s * 1e9))
            row: dict[str, Any] = {**incident, "lost_s": incident["gpu_lost_s"]}
            lists = {name: json.dumps(row[name]) for name in ("victims", "culprits", "evidence", "fixes")}
            yield self._plain("incident", start_ns, row | lists | {"dt_s": (end_ns - start_ns) * NS, "lasts": int(end_s is None)})


def _merged(older: Any, newer: Any, adds: bool) -> Any:
    """Of two readings of one tick."""
    if older is None or newer is None:
        return older if newer is None else newer
    return older + newer if adds else newer


def _table_of(block: FileBlock) -> Table | None:
    """A block's columns, made from its frames where it is of another codec."""
    table = block.table()
    if table is not None:
        return table
    frames = list(block.frames())
    try:
        return open_table(encode(frames)) if frames else None
    except OverflowError:
        raise ColumnError("a number is beyond 64 bits") from None
