"""Reading the tables, or just the columns that are asked for, out of a recording."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from msgspec import UNSET, structs, to_builtins

from gputop.findings.explanation import Explanation
from gputop.findings.verdict import Ledger
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Mark, ProcInfo, Transport
from gputop.model.identity import FIELDS, identity_of
from gputop.model.parallel import DIMENSIONS, parallel_of
from gputop.model.roles import SIZE_VARIABLES, Role, number_in, program_name
from gputop.recording.format import TICKS
from gputop.recording.reader import Recording
from gputop.stream.following import Following
from gputop.stream.judged import judged
from gputop.stream.kept import explanation
from gputop.stream.kept_traces import traces_in
from gputop.stream.runs import beside, seen
from gputop.tables import runs
from gputop.tables.columns import NS
from gputop.tables.events import TALLIED, Tally
from gputop.tables.rows import FieldNames, Known, Rows, rows_at
from gputop.tables.schema import GPU, PROC, TABLES, TALLY
from gputop.tables.spec import TableSpec
from gputop.tables.threads import COUNTED
from gputop.tables.traced import kernel_rows, trace_rows

Wanted = Mapping[str, Sequence[str]]  # table -> its columns, in the order of the rows' values
Batch = tuple[str, Iterable[tuple[Any, ...]]]  # rows of a table, maybe none
SETTLED_NS = 2_000_000_000  # bystanders are read and reported once a second, so both have happened after that
KNOWN_BEFORE_NS = 60_000_000_000  # threads report when they run; most run within a minute
SKIPPED, UNREAD = "the beat was skipped", "not in the file"
MOST_TOGETHER = 100  # frames that become rows at once: more take less time a row, and more memory
_NEEDS_NAMES = {"name", "role", "victim", "culprit", "wakee", "waker"}
_NEEDS_PIDS = {"victim", "victim_pid", "wakee", "wakee_pid"}
_NEEDS_COUNTS = {"stall_ms", "thread_switches", "thread_offcpu_s"}


def read_frames(recording: Recording, start_ns: int, end_ns: int, parts: tuple[str, ...]) -> Iterator[Frame]:
    """The frames up to ``end_ns``, from the last key frame before ``start_ns`` on; ``parts`` as in `Recording.frames`."""
    return recording.frames(recording.key_before(start_ns - 1), end_ns, parts) if parts else iter(())


class TableLoader:
    """Yields batches of rows from ``start_ns`` up to ``end_ns``."""

    def __init__(self, recording: Recording, wanted: Wanted, start_ns: int = 0, end_ns: int = 1 << 62) -> None:
        self.recording = recording
        self.wanted = wanted
        self._began_ns = recording.start_ns
        if recording.tier != TICKS:  # whole seconds of the clock, a frame each
            start_ns, end_ns = start_ns // SECOND_NS * SECOND_NS, -(-end_ns // SECOND_NS) * SECOND_NS
        self.start_ns, self.end_ns = self._began_ns if start_ns <= recording.start_ns else start_ns, end_ns
        self._known = Known(recording.header, self._began_ns)
        self._specs = [TABLES[name] for name in wanted if TABLES[name].path]
        self._tally = Tally(wanted[TALLY.name], self._inside) if TALLY.name in wanted else None
        asked = {column for columns in wanted.values() for column in columns}
        self._names = bool(asked & _NEEDS_NAMES) or "process" in wanted
        self._pids = bool(asked & _NEEDS_PIDS)
        self._counts = bool(asked & _NEEDS_COUNTS) or self._tally is not None
        interval_ns = recording.header.interval_ns if recording.tier == TICKS else SECOND_NS
        self._settled_ns = SETTLED_NS + 2 * interval_ns if self._counts else 0
        self._newest_ns = 0  # the last tick that was read
        self._waiting: deque[tuple[int, Batch]] = deque()  # rows of processes, and their last tick: they wait for the counts of threads
        self._family: dict[tuple[int, int], tuple[int, Role]] = {}  # (pid, start_ticks) -> when it was first found, its latest role
        self._gaps = _TickGaps(self.start_ns, recording.header.interval_ns)

    def batches(self) -> Iterator[Batch]:
        """All rows, table by table for some frames at a time."""
        for frames in _grouped(read_frames(self.recording, self._first_ns(), self.end_ns + self._settled_ns, self._parts())):
            yield from self._of_frames(frames)
        yield from self._settled(1 << 62)
        if self._tally is not None:
            yield TALLY.name, self._tally.rest()
        if "gap" in self.wanted:
            yield "gap", self._lost_end()
        if "process" in self.wanted:
            yield "process", self._processes()
        if "trace" in self.wanted or "kernel" in self.wanted:
            yield from self._traces()
        if self.wanted.keys() & {"incident", "ledger", "member", "runs"}:
            found = self._explanation()
            made = {"incident": self._incidents, "ledger": self._ledgers, "runs": self._runs}
            yield from ((name, rows(found)) for name, rows in made.items() if name in self.wanted)
        if "member" in self.wanted:
            yield "member", self._members()

    def _first_ns(self) -> int:
        """Counters grow from their reading before, which may be as old; threads report when they run."""
        return self.start_ns - (KNOWN_BEFORE_NS if self._counts else SETTLED_NS)

    def _parts(self) -> tuple[str, ...]:
        """The fields of frames that rows are made of."""
        parts: set[str] = set()
        for spec in self._specs:
            rows = FieldNames()
            for column in spec.columns:
                if column.name in self.wanted[spec.name]:
                    column.make(rows)
            parts |= {".".join((*spec.path, name)) for name in ("t_ns", *rows.names)}
            parts |= {".".join((*spec.path[:-1], name)) for name in rows.of_owner}
        if self._tally is not None:
            parts |= TALLIED
        if self._pids or self._counts:
            parts |= COUNTED
        if self._names:
            parts |= {"infos", "infos.names", "infos.transport", "gpus.procs"}
        if "gap" in self.wanted:
            parts.add("marks")
        return tuple(sorted(parts))

    def _inside(self, t_ns: int) -> bool:
        return self.start_ns <= t_ns < self.end_ns

    def _of_frames(self, frames: Sequence[Frame]) -> Iterator[Batch]:
        known = self._known
        known.begun_ns = known.begun_ns or frames[0].t_ns
        known.key_ns = frames[0].t_ns if frames[0].key else 0
        self._newest_ns = frames[-1].t_ns
        for frame in frames:
            self._learn(frame)
        if self._names:
            known.roles()
        # Frames behind the end are read for the counts of threads: rows of processes there take their part of the counts, and are dropped.
        yield from self._rows_of(frames)
        if "gap" in self.wanted:
            yield "gap", self._gaps_in(frames)
        yield from self._settled(self._newest_ns - self._settled_ns)

    def _learn(self, frame: Frame) -> None:
        known = self._known
        if self._names and frame.t_ns < self.end_ns:
            if frame.t_ns < self.start_ns:
                known.forget(frame.gone)
            known.learn_infos(frame.t_ns, frame.infos)
            known.learn_gpus(frame.gpus)
        if self._pids:
            known.threads.learn_pids(frame)
        if self._counts:
            known.threads.learn_counts(frame, known.begun_ns)

    def _rows_of(self, frames: Sequence[Frame]) -> Iterator[Batch]:
        """Tables at one path share their rows, so that growth is worked out once."""
        paths = {spec.path for spec in self._specs} | ({("procs",), ("probes", "calls")} if self._tally else set())
        found = {path: rows_at(path, frames, self._known) for path in paths}
        for spec in self._specs:
            rows = found[spec.path]
            if rows is None:
                continue
            batch = spec.name, self._rows(spec, rows)
            if spec is PROC and self._counts:
                self._waiting.append((self._newest_ns, batch))
            else:
                yield batch
        if self._tally is not None:
            procs, calls = found["procs",], found["probes", "calls"]
            if procs is not None:
                self._waiting.append((self._newest_ns, (TALLY.name, self._tally.switches(procs))))
            if calls is not None:
                yield TALLY.name, self._tally.calls(calls)

    def _settled(self, until_ns: int) -> Iterator[Batch]:
        """The rows of processes up to then."""
        if not self._waiting or self._waiting[0][0] > until_ns:
            return
        self._known.threads.settle(until_ns, self._newest_ns)
        while self._waiting and self._waiting[0][0] <= until_ns:
            yield self._waiting.popleft()[1]

    def _rows(self, spec: TableSpec, rows: Rows) -> Iterator[tuple[Any, ...]]:
        if spec.own_time:
            rows.use_own_time()
        made = {column.name: column.make for column in spec.columns}
        columns = [made[name](rows) for name in self.wanted[spec.name]]
        chosen: Iterator[tuple[Any, ...]] = zip(*columns, strict=True)
        if spec is GPU:
            return self._merged_gpus(rows, chosen)
        keep = spec.keep(rows) if spec.keep else None
        if not (self._inside(min(rows.ticks)) and self._inside(max(rows.ticks))):
            inside = map(self._inside, rows.ticks)
            keep = list(inside) if keep is None else [a and b for a, b in zip(keep, inside, strict=True)]
        return chosen if keep is None else compress(chosen, keep)

    def _merged_gpus(self, rows: Rows, values: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """One row for each GPU and tick, although a GPU may be read in parts, one per tier of cost, and several times before a late
        tick."""
        adds_up = {column.name: column.adds_up for column in GPU.columns}
        adds = [adds_up[name] for name in self.wanted[GPU.name]]
        merged: dict[tuple[int, int], tuple[Any, ...]] = {}
        for key, row in zip(zip(rows.ticks, rows.gauge("index"), strict=True), values, strict=True):
            before = merged.get(key)
            merged[key] = row if before is None else tuple(map(_merged, before, row, adds))
        return (row for (tick, _), row in merged.items() if self._inside(tick))

    def _gaps_in(self, frames: Iterable[Frame]) -> Iterator[tuple[Any, ...]]:
        ticks = [frame for frame in frames if frame.ticks or self._gaps.is_unbegun]  # of seconds and minutes only whole ones
        found = [gap for frame in ticks if (gap := self._gaps.before(frame.t_ns, frame.seq, frame.missed, frame.marks, frame.ticks))]
        return (self._gap(gap) for gap in found if self._inside(gap.until_ns))

    def _lost_end(self) -> Iterator[tuple[Any, ...]]:
        """The gap up to the end, where the end is damaged."""
        gap = self._gaps.behind(min(self.end_ns, self.recording.end_ns)) if self.recording.lost else None
        return iter([self._gap(gap)] if gap else ())

    def _gap(self, gap: _Gap) -> tuple[Any, ...]:
        row = {"dt_s": (gap.until_ns - gap.since_ns) * NS, "missed": gap.missed, "reason": gap.reason}
        return self._plain("gap", gap.since_ns, row)

    def _plain(self, table: str, t_ns: int, row: dict[str, Any]) -> tuple[Any, ...]:
        row |= {"t_ns": t_ns, "unix_s": self.recording.unix_ns_of(t_ns) * NS, "t_s": (t_ns - self._began_ns) * NS}
        return tuple(row[name] for name in self.wanted[table])

    def _processes(self) -> Iterator[tuple[Any, ...]]:
        known, host = self._known, self._known.header.host
        asked = any(name in (*FIELDS, "unidentified") and name != "user" for name in self.wanted["process"])
        for subject, (t_ns, info) in known.ever.items():
            role = known.roles_ever.get(subject)
            whose = structs.asdict(identity_of(info, host)) if asked else {"missing": {}}
            missing = whose.pop("missing")
            yield self._plain("process", t_ns, {
                "pid": info.pid, "ppid": info.ppid, "start_ticks": info.start_ticks, "name": info.comm, "cmdline": " ".join(info.cmdline),
                **whose, "unidentified": json.dumps(missing, ensure_ascii=False) if role and role.kind == "trainer" else None,
                "user": info.user, "role": role.kind if role else "bystander", "trainer_pid": role.trainer_pid if role else None,
                "rank": role.rank if role else None, "label": role.label if role else program_name(info), "cgroup": info.cgroup,
                "cpus_allowed": info.cpus_allowed, "parallel": _parallel(info), **_transport(info.transport),
            })  # fmt: skip

    def _explanation(self) -> Explanation:
        recording, start, end = self.recording, max(self.start_ns, self.recording.start_ns), min(self.end_ns, self.recording.end_ns + 1)
        found = None if "member" in self.wanted else explanation(recording, start, end, with_rest=True)
        if found is None:
            following = Following()
            for board in judged(following, recording, start, end, fine=recording.tier == TICKS):
                if "member" in self.wanted:
                    self._learn_family(following.engine.family, board)
            found = following.engine.explain()
        return found

    def _learn_family(self, family: Mapping[int, Role], board: Board) -> None:
        """Keep the processes that have a part in a job; the latest part counts."""
        for pid, role in family.items():
            if role.part and (info := board.infos.get(pid)) is not None:
                since_ns = self._family.get((pid, info.start_ticks), (board.t_ns, role))[0]
                self._family[pid, info.start_ticks] = since_ns, role

    def _members(self) -> Iterator[tuple[Any, ...]]:
        for (pid, start_ticks), (t_ns, role) in self._family.items():
            row = {"pid": pid, "start_ticks": start_ticks, "trainer_pid": role.trainer_pid, "part": role.part, "label": role.label}
            yield self._plain("member", t_ns, row)

    def _ledgers(self, found: Explanation) -> Iterator[tuple[Any, ...]]:
        start_ns = max(self.start_ns, self.recording.start_ns)
        for one in found.trainers:
            if not isinstance(own := one.ledger, Ledger):
                continue
            whose = {name: one.identity.get(name) for name in ("user", "slurm_job_id", "namespace", "pod")}
            row = {"trainer_pid": one.pid, "label": one.name, "rank": one.rank, "gpu_s": own.gpu_total_s, **whose}
            for cause, lost_s in own.by_cause.items() or [(None, 0.0)]:
                yield self._plain("ledger", start_ns, row | {"cause": cause, "lost_s": lost_s})

    def _traces(self) -> Iterator[Batch]:
        found = traces_in(self.recording, self.start_ns, self.end_ns)
        for name, rows in (("trace", trace_rows), ("kernel", kernel_rows)):
            if name in self.wanted:
                yield name, [self._plain(name, t_ns, row) for t_ns, row in rows(found)]

    def _runs(self, found: Explanation) -> Iterator[tuple[Any, ...]]:
        own = [] if found.runs is UNSET else found.runs
        return runs.rows(seen(own, beside(self.recording)), self.wanted["runs"])

    def _incidents(self, found: Explanation) -> Iterator[tuple[Any, ...]]:
        recording, end = self.recording, min(self.end_ns, self.recording.end_ns + 1)
        for incident in found.incidents:
            start_ns = recording.t_ns_of(round(incident.start_unix_s * 1e9))
            end_s = incident.end_unix_s
            end_ns = end - 1 if end_s is None else recording.t_ns_of(round(end_s * 1e9))
            row: dict[str, Any] = {**to_builtins(incident), "lost_s": incident.gpu_lost_s}
            lists = {name: json.dumps(row[name]) for name in ("victims", "culprits", "evidence", "fixes", "path")}
            yield self._plain("incident", start_ns, row | lists | {"dt_s": (end_ns - start_ns) * NS, "lasts": int(end_s is None)})


def _parallel(info: ProcInfo) -> str | None:
    """The column of `process` about the groups of a rank's training; None if they are not known."""
    found = parallel_of(info.cmdline, number_in(info.env, SIZE_VARIABLES) or 0, info.group_sizes)
    return None if found is None else json.dumps({"dp": found.dp, **{name: getattr(found, name) for name in DIMENSIONS}})


def _transport(one: Transport | None) -> dict[str, Any]:
    """The columns of `process` about a rank's ways to its peers."""
    if one is None:
        return dict.fromkeys(("collectives", "rdma_devices", "nccl_shm", "nccl_variables"))
    return {
        "collectives": f"{one.library} {one.version}".strip() or None, "rdma_devices": json.dumps(one.devices, ensure_ascii=False),
        "nccl_shm": one.shm, "nccl_variables": json.dumps(one.variables, ensure_ascii=False),
    }  # fmt: skip


class _Gap(NamedTuple):
    """A stretch without data, from the last tick before it to the first behind it."""

    since_ns: int
    until_ns: int
    missed: int | None  # beats that the collector skipped, None where its count is not in the file
    reason: str


class _TickGaps:
    """Finds gaps among ticks in order, from ``start_ns`` on."""

    def __init__(self, start_ns: int, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._earlier = self._before = start_ns  # the last two ticks
        self._seq: int | None = None

    @property
    def is_unbegun(self) -> bool:
        """True if no tick was taken yet."""
        return self._seq is None

    def before(self, t_ns: int, seq: int, missed: int, marks: Sequence[Mark] = (), ticks: int = 1) -> _Gap | None:
        """The gap before this tick, or before these merged ``ticks``, with the recorder's reason if it gave one; None without a gap."""
        unread = t_ns > self._before if self._seq is None else not seq - ticks <= self._seq < seq
        held_up = not unread and t_ns - self._before < missed * self._interval_ns
        since, until = self._before, t_ns
        if held_up and self._before - self._earlier > t_ns - self._before:
            # A collector that was stopped while it waited runs that beat late, and only the next one has the number of beats skipped.
            since, until = self._earlier, self._before
        self._earlier, self._before, self._seq = self._before, t_ns, seq
        reason = next((mark.gap_reason for mark in marks if mark.gap_reason), UNREAD if unread else SKIPPED)
        return _Gap(since, until, missed, reason) if (missed or unread) and since < until else None

    def behind(self, end_ns: int) -> _Gap | None:
        """The gap from the last tick to ``end_ns``, up to which was recorded."""
        return _Gap(self._before, end_ns, None, UNREAD) if 2 * (end_ns - self._before) > 3 * self._interval_ns else None


def _grouped(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
    """Groups of frames, each with one set of identities; a group begins with each key frame, and if identities change."""
    group: list[Frame] = []
    for frame in frames:
        if group and (frame.key or frame.infos or len(group) == MOST_TOGETHER):
            yield group
            group = []
        group.append(frame)
    if group:
        yield group


def _merged(older: Any, newer: Any, adds: bool) -> Any:
    """A column's value of two readings in one tick."""
    if older is None or newer is None:
        return older if newer is None else newer
    return older + newer if adds else newer
