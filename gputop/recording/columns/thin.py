"""A block as one frame: what its frames leave behind, without reading all of them.

Where a counter stands at a subject's last row is told first in its column, so that a second of many processes is read in a
fraction of the time that its ten frames take. Of what changes between, `Second` has the few fields that the diagnosis looks at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice, repeat
from typing import Any

from msgspec import Struct, field

from gputop.model.frame import Frame, GpuReading, Preempt, SchedThread, ThreadSample
from gputop.recording.columns.decode import BROKEN, Table
from gputop.recording.columns.layout import MAIN_THREAD, ColumnError, FieldPlan
from gputop.recording.columns.sums import main_thread

Wait = tuple[str, "int | None", "int | None", "str | None"]
"""(state, syscall, syscall_arg, wchan) of a `ProcSample`."""
Without = Mapping[type, "frozenset[str]"]
"""Struct -> fields that nobody asks for: they are left at their default, numbers without one at 0."""
NO_HISTOGRAMS: Without = {SchedThread: frozenset(("hist",))}


class Second(Struct):
    """Some frames in a row, thinned."""

    frames: list[Frame]
    """Few, or one: folded, they make the board that all would have made, but for the histograms of threads. Stacks and markers, which
    leave nothing on a board, are left out."""
    waits: dict[int, list[Wait]] = field(default_factory=dict)
    """What each process was met at in each of its samples, by pid."""
    gpus: list[GpuReading] = field(default_factory=list)
    """Every reading that has utilization, power or the share of time in which kernels ran."""
    seqs: list[int] = field(default_factory=list)
    """The numbers of all frames."""


def whole(frames: list[Frame]) -> Second:
    """The same of frames that are there one by one."""
    second = Second(frames, seqs=[frame.seq for frame in frames])
    for frame in frames:
        for proc in frame.procs:
            second.waits.setdefault(proc.pid, []).append((proc.state, proc.syscall, proc.syscall_arg, proc.wchan))
        for gpu in frame.gpus:
            second.gpus += _telling(GpuReading(gpu.index, gpu.t_ns, gpu.util_pct, gpu.power_w, gpu.power_instant, gpu.gr_active_pct))
    return second


def _telling(reading: GpuReading) -> Iterable[GpuReading]:
    """The reading, or nothing where it has none of what the diagnosis looks at."""
    told = reading.util_pct, reading.power_w, reading.gr_active_pct
    return () if told == (None, None, None) else (reading,)


def thin(table: Table, without: Without = NO_HISTOGRAMS) -> Second:
    """Raises ColumnError where one frame cannot tell what all of them did; they must then be read one by one."""
    try:
        return _thin(table, without)
    except BROKEN as error:
        raise ColumnError(f"a table is broken: {error}") from None


def _thin(table: Table, without: Without) -> Second:
    keys = table.column("key")
    if any(keys[1:]):
        raise ColumnError("a key frame stands within the block")
    seqs = list(table.column("seq"))
    second = Second([Frame(seqs[-1], table.column("t_ns")[-1])], seqs=seqs)
    frame = second.frames[0]
    frame.gone = [pid for pids in table.column("gone") for pid in pids]
    _add_procs(second, table, without)
    _add_gpus(second, table, without)
    below = table.children("sources")
    frame.sources = _last(below[1], without) if below else []
    frame.probes = _probes(table, without)
    _add_hosts(second, table, without)
    _add_sampled(second, table)
    second.frames[0].key = keys[0]
    return second


def _add_procs(second: Second, table: Table, without: Without) -> None:
    frame, below = second.frames[0], table.children("infos")
    if below:
        frame.infos = _alive(table, *below, without)
    below = table.children("procs")
    if below is None:
        return
    frame.procs = _alive(table, *below, without)
    procs = below[1]
    waits = list(zip(*map(procs.column_by_subject, ("state", "syscall", "syscall_arg", "wchan")), strict=True))
    pids = procs.at_last("pid")
    second.waits = {pid: waits[start:end] for pid, (start, end) in zip(pids, procs.order.spans, strict=True)}


def _add_gpus(second: Second, table: Table, without: Without) -> None:
    below = table.children("gpus")
    if below is None:
        return
    gpus = below[1]
    second.frames[0].gpus = _merged(gpus, without)
    readings = zip(*map(gpus.column_by_subject, GpuReading.__struct_fields__), strict=True)
    second.gpus = [told for reading in readings for told in _telling(GpuReading(*reading))]


def _add_hosts(second: Second, table: Table, without: Without) -> None:
    """A frame has room for one reading of the host; its parts are read at several paces."""
    below = table.children("host")
    told = _merged(below[1], without) if below else []
    frame = second.frames[0]
    frame.host = told.pop() if told else None
    second.frames[:0] = [Frame(frame.seq, frame.t_ns, host=host) for host in told]


def _add_sampled(second: Second, table: Table) -> None:
    """Each at its moment, for it is told what the GPUs did meanwhile."""
    below = table.children("sampled")
    if below is None:
        return
    lengths, held = below
    rows = iter(map(held.struct, *map(held.column, held.plan)))
    told = [list(islice(rows, max(0, length))) for length in lengths]
    second.frames[-1].sampled = told.pop()
    moments = zip(table.column("seq"), table.column("t_ns"), told, strict=False)
    second.frames[:0] = [Frame(seq, t_ns, sampled=some) for seq, t_ns, some in moments if some]


def _probes(table: Table, without: Without) -> Any:
    below = table.children("probes")
    if below is None:
        return None
    probes = below[1]
    lists = {name: found for name in ("threads", "preempts", "wakeups", "calls", "launches") if (found := probes.children(name))}
    gone = {tid: row for row, tids in enumerate(probes.column("gone")) for tid in tids}
    for name, (lengths, held) in lists.items() if gone else ():
        _refuse_return(name, lengths, held, gone)
    last = {name: probes.column(name)[-1] for name in probes.plan if name not in lists}
    told = {name: _last(held, without) for name, (_, held) in lists.items()}
    forgotten = {pair: row for row, pairs in enumerate(probes.column("forgotten")) for pair in pairs}
    if forgotten and "preempts" in lists:
        told["preempts"] = _not_forgotten(told["preempts"], _parents(*lists["preempts"]), forgotten)
    return probes.struct(**last | told | {"gone": list(gone), "forgotten": list(forgotten)})


def _not_forgotten(pairs: list[Preempt], rows: list[int], forgotten: dict[int, int]) -> list[Preempt]:
    """Those that stand at the end, of pairs last told in ``rows``; what was told again is taken out of ``forgotten``."""
    stand = []
    for preempt, row in zip(pairs, rows, strict=True):
        pair = preempt.victim_tid | preempt.culprit_tid << 32
        if row > forgotten.get(pair, -1):
            forgotten.pop(pair, None)
            stand.append(preempt)
    return stand


def _refuse_return(name: str, lengths: list[int], held: Table, gone: dict[int, int]) -> None:
    """A thread's number that is used again within the block."""
    keys = [held.at_last(key) for key in held.layout.keys] if name not in ("calls", "launches") else []
    for numbers, row in zip(zip(*keys, strict=True), _parents(lengths, held), strict=True) if keys else ():
        if any(row > gone.get(tid, row) for tid in numbers):
            raise ColumnError("a thread's number is used again")


def _alive(table: Table, lengths: list[int], held: Table, without: Without) -> list[Any]:
    """The last row of each process, but for those that ended later in the block."""
    rows = _last(held, without)
    gone = {pid: row for row, pids in enumerate(table.column("gone")) for pid in pids}
    if not gone:
        return rows
    return [row for row, told in zip(rows, _parents(lengths, held), strict=True) if told >= gone.get(row.pid, told)]


def _parents(lengths: list[int], held: Table) -> list[int]:
    """In which row above each subject's last row stands."""
    ends = list(accumulate(max(0, length) for length in lengths))
    return [bisect_right(ends, row) for row in held.order.last_rows]


def _last(table: Table, without: Without) -> list[Any]:
    """The last row of each subject."""
    return list(map(table.struct, *(_at_last(table, plan, without) for plan in table.plan.values()))) if table.rows else []


def _at_last(table: Table, plan: FieldPlan, without: Without) -> Iterable[Any]:
    if plan.name in without.get(table.struct, ()):
        return repeat(plan.default() if plan.default else 0)
    below = table.children(plan.name) if plan.kind in ("list", "one") else None
    if below is None:
        return table.at_last(plan.name)
    rows = table.order.last_rows
    return _lists(plan, _groups(below[1], rows), _held(table, below[1], without))


def _held(table: Table, below: Table, without: Without) -> list[Any]:
    """The last row of each subject below; a main thread that only says that it repeats its process does so."""
    held = _last(below, without)
    if below.struct is ThreadSample and any(thread.timeslices == -1 for thread in held):
        mains = {main[0]: main for main in zip(*map(table.at_last, MAIN_THREAD), strict=True)}
        return [main_thread(mains[thread.tid]) if thread.timeslices == -1 and thread.tid in mains else thread for thread in held]
    return held


def _lists(plan: FieldPlan, groups: Sequence[Sequence[int] | None], held: list[Any]) -> list[Any]:
    """What the rows above hold in a field."""
    if plan.kind == "one":
        return [held[group[0]] if group else None for group in groups]
    return [None if group is None else [held[i] for i in group] for group in groups]


def _groups(below: Table, rows: Sequence[int]) -> Sequence[Sequence[int] | None]:
    """The subjects that each of some rows above holds; these rows must be the subjects' last ones. Kept with the layout."""
    layout = below.layout
    if layout.groups is None:
        offsets = [0, *accumulate(max(0, length) for length in layout.lengths)]
        spans = [range(offsets[row], offsets[row + 1]) if row >= 0 and layout.lengths[row] >= 0 else None for row in rows]
        order = layout.order
        lasts = set(order.last_rows)
        if any(row not in lasts for span in spans if span for row in span):
            raise ColumnError("a row is not its subject's last one")
        layout.groups = [None if span is None else [order.ids[row] for row in span] for span in spans]
    return layout.groups


def _merged(table: Table, without: Without) -> list[Any]:
    """The last value of every field that may be absent, in structs for the moments at which they were read, in their order."""
    moments: dict[int, dict[str, Any]] = {}
    skipped = without.get(table.struct, frozenset())
    for plan in [plan for name, plan in table.plan.items() if name not in skipped]:
        if plan.nullable and table.tells(plan.name):
            for row, value in _last_told(table, plan, without):
                if row >= 0:
                    moments.setdefault(row, {})[plan.name] = value
    if "missing" in table.plan and table.tells("missing"):
        for row, missing in enumerate(table.column_by_subject("missing")):
            if missing:
                moments.setdefault(row, {})["missing"] = missing
    certain = {name: table.column_by_subject(name) for name, plan in table.plan.items() if plan.default is None}
    made = [(table.order.rows[row], row) for row in moments]
    return [table.struct(**{name: column[row] for name, column in certain.items()}, **moments[row]) for _, row in sorted(made)]


def _last_told(table: Table, plan: FieldPlan, without: Without) -> list[tuple[int, Any]]:
    below = table.children(plan.name) if plan.child is not None else None
    if below is None:
        return table.last_told(plan.name)
    order, least = table.order, int(plan.kind == "one")
    lengths = order.by_subject(below[1].layout.lengths)
    told = [next((row for row in range(end - 1, start - 1, -1) if lengths[row] >= least), -1) for start, end in order.spans]
    groups = _groups(below[1], [order.rows[row] if row >= 0 else -1 for row in told])
    return list(zip(told, _lists(plan, groups, _held(table, below[1], without)), strict=True))
