"""The rows of one block below one path, by subject, with what came before them remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from operator import add, mul, sub
from typing import Any

from gputop.model.frame import SECOND_NS, Gpu, GpuProc, Header, Preempt, ProcInfo, Wakeup, compute_pids, sizes_of_contexts
from gputop.model.roles import Role, assign
from gputop.recording.columns.decode import Table
from gputop.recording.columns.layout import Pick, pick
from gputop.recording.columns.standing import Standing
from gputop.tables.told import Stalls, Switches


class Known:
    """What must be remembered from block to block."""

    def __init__(self, header: Header, start_ns: int) -> None:
        self.header = header
        self.start_ns = start_ns
        self.last: defaultdict[tuple[str, str], Standing] = defaultdict(Standing)
        """(path, field) -> each subject's latest value, None where it was never told."""
        self.infos: dict[int, ProcInfo] = {}
        self.ever: dict[tuple[int, int], tuple[int, ProcInfo]] = {}
        """(pid, start_ticks) -> when first told, latest identity."""
        self.pid_of: dict[int, int] = {}
        """tid -> pid, from the sched probe."""
        self.begun_ns = 0
        """The first tick that was read."""
        self.key_ns = 0
        """Tick of the present block's key frame, which tells again of all there is; 0 where it has none."""
        self.stalls, self.switches = Stalls(), Switches()
        """Of all of each process's threads."""
        self._gpu_pids: frozenset[int] = frozenset()
        self._on_gpus: dict[int, list[GpuProc]] = {}
        self._roles: dict[int, Role] | None = None
        self.roles_ever: dict[tuple[int, int], Role] = {}

    def learn_infos(self, t_ns: int, infos: Iterable[ProcInfo]) -> None:
        """Take over identities."""
        for info in infos:
            if self.infos.get(info.pid) != info:
                self._roles = None
            self.infos[info.pid] = info
            subject = info.pid, info.start_ticks
            self.ever[subject] = self.ever.get(subject, (t_ns, info))[0], info

    def forget(self, gone: Iterable[int]) -> None:
        """Who ended before the time that is asked for was not seen in it."""
        for pid in gone:
            if (info := self.infos.get(pid)) is not None:
                self.ever.pop((pid, info.start_ticks), None)

    def learn_gpus(self, gpus: Iterable[Gpu]) -> None:
        """Take over who is on a GPU."""
        told = [compute_pids(gpu.procs or ()).union(gpu.held_by or ()) for gpu in gpus if gpu.procs is not None or gpu.held_by]
        self._on_gpus |= {gpu.index: gpu.procs for gpu in gpus if gpu.procs}
        pids = frozenset().union(*told)
        if told and pids - self._gpu_pids:
            self._gpu_pids |= pids
            self._roles = None

    def roles(self) -> dict[int, Role]:
        """Who is who now."""
        if self._roles is None:
            self._roles = assign(self.infos, self._gpu_pids, sizes_of_contexts(self._on_gpus))
            for pid, role in self._roles.items():
                self.roles_ever[pid, self.infos[pid].start_ticks] = role
        return self._roles

    def name(self, pid: int | None) -> str | None:
        """The name of a process, None where it is not known."""
        info = None if pid is None else self.infos.get(pid)
        return info.comm or (info.cmdline[0] if info.cmdline else "") if info else None


class Rows:
    """Rows in order of subjects; every column has one value per row."""

    def __init__(self, table: Table, frames_ns: Sequence[int], at_rows: Pick, known: Known) -> None:
        """``at_rows`` spreads what is known of the frames, such as their ticks, over the rows."""
        self.table = table
        self.known = known
        self.ticks = at_rows(frames_ns)
        """Time of the frame each row stands in."""
        self._frames_ns, self._at_rows = frames_ns, at_rows
        self._columns: dict[str, Sequence[Any]] = {}

    def tell_own_time(self) -> None:
        """A row's time is its own, not that of its frame."""
        self.ticks = self._frames_ns = self.gauge("t_ns")
        self._at_rows = tuple

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first and the last tick that a row may stand in."""
        return min(self._frames_ns), max(self._frames_ns)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.table.rows

    def gauge(self, name: str) -> Sequence[Any]:
        """A field as it stands."""
        if name not in self._columns:
            self._columns[name] = self.table.column_by_subject(name)
        return self._columns[name]

    def increment(self, name: str) -> Sequence[Any]:
        """What a counter grew by since its subject's row before; None in a subject's first, where it is absent or was reset."""
        key = f"+{name}"
        if key not in self._columns:
            self._columns[key] = self._grown(name)
        return self._columns[key]

    def at(self, offset_ns: int) -> Sequence[float]:
        """Seconds from ``offset_ns`` to each row's tick."""
        return self._at_rows([(t_ns - offset_ns) / 1e9 for t_ns in self._frames_ns])

    def dates(self) -> Sequence[float]:
        """The wall clock at each row's tick, seconds since 1970."""
        return self._at_rows([self.known.header.unix_ns_of(t_ns) / 1e9 for t_ns in self._frames_ns])

    def scaled(self, name: str, factor: float) -> Sequence[Any]:
        """An increment times ``factor``."""
        column = self.increment(name)
        try:
            return list(map(mul, column, repeat(factor)))
        except TypeError:
            return [value if value is None else value * factor for value in column]

    def total(self, *names: str) -> Sequence[Any]:
        """The sum of increments, None where one is."""
        first, *others = map(self.increment, names)
        try:
            for column in others:
                first = list(map(add, first, column))
        except TypeError:
            columns = [self.increment(name) for name in names]
            return [None if None in values else sum(values) for values in zip(*columns, strict=True)]
        return first

    def _grown(self, name: str) -> list[Any]:
        order, stood = self.table.order, self._stood(name)
        course = self.table.steps(name)
        if course is None:
            values = self.gauge(name)
            if None in values:
                return self._grown_with_gaps(name, values, stood)
            before: Sequence[int] = [0] * len(stood)
            course = before, order.at_ends(values), list(map(sub, values, order.behind(before, values)))
        before, lasts, grown = course
        self.known.last[self.table.path, name].put(order, lasts)
        # Mostly these are the very same, which the block before left: then the steps are what is asked for.
        unknown = [] if stood is before else self._go_on(grown, stood, before)
        found: list[Any] = self._began_anew(name, grown) if min(grown) < 0 else grown
        for start in unknown:
            found[start] = None
        return found

    def _go_on(self, grown: list[int], stood: Sequence[Any], before: Sequence[int]) -> list[int]:
        """Let subjects go on from where they ``stood``, not from ``before``; the first rows of those of which that is not known."""
        unknown = []
        for start, known, told in zip(self.table.order.starts, stood, before, strict=True):
            if known is None:
                unknown.append(start)
            grown[start] = 0 if known is None else grown[start] + told - known
        return unknown

    def _began_anew(self, name: str, grown: list[int]) -> list[Any]:
        """Where a counter went back it was reset: a pair's is forgotten to make room, and goes on from 0."""
        if self.table.struct in (Preempt, Wakeup):
            return [value if steps < 0 else steps for steps, value in zip(grown, self.gauge(name), strict=True)]
        return [None if steps < 0 else steps for steps in grown]

    def _stood(self, name: str) -> Sequence[Any]:
        """What each subject's counter stood at before its first row."""
        order, path, key_ns = self.table.order, self.table.path, self.known.key_ns
        stood = self.known.last[path, name].of(order, None)
        if key_ns and path.startswith(".probes") and key_ns in self.ticks:
            # What a key frame leaves out was forgotten, and begins anew.
            self.known.last[path, name] = Standing()
            stood = [before if self.ticks[row] <= key_ns else None for row, before in zip(order.starts, stood, strict=True)]
        if None in stood and path.startswith((".procs", ".probes")):
            return [self._began_at(name, row) if before is None else before for row, before in zip(order.starts, stood, strict=True)]
        return stood

    def _began_at(self, name: str, row: int) -> int | None:
        """What the counter stood at as its subject, whose first row this is, began. A process that was born since the recording began, and
        what a probe first tells of then, had begun at 0, its time at its birth; of who was there before nothing is known."""
        known = self.known
        if self.ticks[row] <= known.begun_ns:
            return None
        if self.table.path != ".procs":
            return 0
        born_ns: int = self.gauge("start_ticks")[row] * (SECOND_NS // known.header.clock_tick_hz)  # whole ticks, rounded down
        if born_ns < known.start_ns:
            return None
        return born_ns if name == "t_ns" else 0

    def _grown_with_gaps(self, name: str, values: Sequence[Any], stood: Sequence[Any]) -> list[Any]:
        order, lasts, grown = self.table.order, [], []
        for (start, end), previous in zip(order.spans, stood, strict=True):
            for value in values[start:end]:
                grown.append(None if value is None or previous is None or value < previous else value - previous)
                previous = previous if value is None else value
            lasts.append(previous)
        self.known.last[self.table.path, name].put(order, lasts)
        return grown


def rows_below(table: Table, path: Sequence[str], known: Known) -> Rows | None:
    """The rows at a path such as ("probes", "calls"); None where the block has none."""
    frames_ns, lengths = table.column("t_ns"), []
    for name in path:
        below = table.children(name)
        if below is None:
            return None
        lengths.append(below[0])
        table = below[1]
    return Rows(table, frames_ns, _at_rows(table, len(frames_ns), lengths), known) if table.rows else None


def _at_rows(table: Table, frames: int, lengths: Iterable[Sequence[int]]) -> Pick:
    """See `Rows`; ``lengths`` lead from the frames to the table. Kept with its layout."""
    if table.layout.at_rows is None:
        frame: Sequence[int] = range(frames)
        for counts in lengths:
            frame = list(chain.from_iterable(map(repeat, frame, counts)))
        table.layout.at_rows = pick(table.order.by_subject(frame))
    return table.layout.at_rows
