"""The process table: which processes it shows, in which order, with which numbers; its columns and the state lanes.

A state lane is on the same axis as the charts above the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from math import ceil

from msgspec import Struct

from gputop.findings.policy import FEED_EVERY_NS
from gputop.model.board import Board
from gputop.model.fields import FIELDS
from gputop.model.frame import SECOND_NS, GpuProc, ProcInfo, ProcSample
from gputop.model.identity import brief_of
from gputop.model.rates import ProbedSwitches, ProcRates, proc_rates
from gputop.model.roles import COMPILES, Role, is_foreign_list, is_whole_machine, program_name
from gputop.stream.history import History
from gputop.stream.session import Session, word_of
from gputop.system.privilege import INITIAL_PID_NAMESPACE
from gputop.system.text import clean, fit
from gputop.tui.draw import Line, Span
from gputop.tui.draw.columns import TableColumn, cells, titles, total
from gputop.tui.draw.lanes import RollingCells, level, merge, with_cursor
from gputop.tui.draw.search import matches
from gputop.tui.draw.view import Axis, View

SPAN_NS = SECOND_NS  # rates in the table are over the last second: shorter ones change faster than anyone reads
LEAST_BYSTANDER_PCT = 1.0  # % of a CPU from which a process outside the training has a row
_KERNEL_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle"}
JOB_FROM = 200  # columns from which the table has one for pod, Slurm job or container
_NO_GPU = (99,)  # sorts families without a GPU behind the others
GLYPHS = {
    "": " ", "running": "▄", "computing": "▄", "runnable": "▒", "disk": "▪", "memory": "◆", "throttled": "▼", "blocked": "–",
    "ahead": "·", "stopped": "■", "waiting-data": "░", "waiting-gpu": "▂", "transfer": "►", "sleeping": " ", "dead": "×",
}  # fmt: skip
STARVING_GLYPH = "█"
INFERRED_MARK = "~"
HIDDEN = "bystanders hidden (b)"


class ProcessRow(Struct):
    """One process as the table shows it; None is not measured."""

    pid: int
    role: Role | None
    depth: int
    who: str
    state: str
    starving: bool
    inferred: bool  # the state is inferred: what the process waits for cannot be read
    user: str
    cpu_pct: float | None = None
    runq_pct: float | None = None
    disk_pct: float | None = None
    disk_bytes_per_s: float | None = None
    switches_per_s: float | None = None
    invol_per_s: float | None = None
    rss_bytes: int | None = None
    gpu_mem_bytes: int | None = None  # memory on all of its GPUs
    sm_pct: float | None = None  # mean over its GPUs, like ``mem_bw_pct``
    mem_bw_pct: float | None = None
    gpu: str = ""  # on which GPUs, see `place_of`
    start_ticks: int = 0
    command: str = ""
    job: str = ""  # its pod, Slurm job or container; only where there is room for it, or a search


Key = Callable[[ProcessRow], float]


def _most_first(name: str) -> Key:
    """Sorts by an attribute, the largest first, what is not measured last."""

    def key(row: ProcessRow) -> float:
        value = getattr(row, name)
        return 1.0 if value is None else -float(value)

    return key


SORTS: dict[str, tuple[str, Key]] = {
    "natural": ("GPU, trainer, worker", lambda _: 0.0),
    "user": ("user", lambda _: 0.0),
    "pid": ("pid", lambda row: row.pid),
    "gpu-mem": ("GPU memory", _most_first("gpu_mem_bytes")),
    "sm": ("SM %", _most_first("sm_pct")),
    "bandwidth": ("GPU memory bandwidth %", _most_first("mem_bw_pct")),
    "cpu": ("CPU %", _most_first("cpu_pct")),
    "mem": ("resident memory", _most_first("rss_bytes")),
    "time": ("time running", lambda row: row.start_ticks),
    "runq": ("run-queue %", _most_first("runq_pct")),
    "switches": ("context switches", _most_first("switches_per_s")),
}  # name of a sort order -> what the screen calls it, and its key


def rows(session: Session, view: View) -> list[ProcessRow]:
    """Trainers with their families, GPU processes without a role, then bystanders that take CPU."""
    older, newer = session.boards_around(view.at_ns, SPAN_NS)
    table = _RowBuilder(session, view, older, newer, session.feeders_at(newer) | session.roles_at(newer))
    found = [row for row in table.all() if _is_wanted(row, newer.infos.get(row.pid), view)]
    return _ordered(found, view)


class _RowBuilder:
    """Builds the rows of one moment."""

    def __init__(self, session: Session, view: View, older: Board, newer: Board, roles: dict[int, Role]) -> None:
        self.session, self.view, self.older, self.newer, self.roles = session, view, older, newer, roles
        self.switched = ProbedSwitches(older, newer)
        self.on_gpu = gpus_by_pid(newer)

    def all(self) -> list[ProcessRow]:
        shown = [self.row(pid) for pid in sorted(self.roles, key=self._place) if not self._is_idle_compiler(pid)]
        shown += [self.row(pid) for pid in sorted(self.on_gpu) if pid not in self.roles]
        if not self.view.hides_bystanders:
            shown += self._bystanders({row.pid for row in shown})
        return shown

    def _is_idle_compiler(self, pid: int) -> bool:
        """True if the process is one of torch.compile's dozens and compiles nothing now; they stay as long as the training."""
        sample = self.newer.procs.get(pid)
        if self.roles[pid].label != COMPILES or sample is None:
            return False
        return (_cpu_pct(self.older.procs.get(pid), sample) or 0.0) < LEAST_BYSTANDER_PCT

    def _place(self, pid: int) -> tuple[int, int, int, int, int]:
        """Sorts families by their GPU; in each the trainer, its workers by number, its helpers."""
        role = self.roles[pid]
        trainer = role.trainer_pid or pid
        gpu = min(self.on_gpu.get(trainer, _NO_GPU))
        order = {"trainer": 0, "worker": 1}.get(role.kind, 2)
        return gpu, trainer, order, role.index if role.index is not None else 0, pid

    def _bystanders(self, shown: set[int]) -> list[ProcessRow]:
        asked = bool(self.view.pattern or self.view.pid or self.view.user)
        busy: list[tuple[float, int]] = []
        for pid, sample in self.newer.procs.items():
            if pid in shown:
                continue
            share = _cpu_pct(self.older.procs.get(pid), sample)
            if asked or (share is not None and share >= LEAST_BYSTANDER_PCT):
                busy.append((-(share or 0.0), pid))
        return [self.row(pid) for _, pid in sorted(busy)]

    def row(self, pid: int) -> ProcessRow:
        info, sample, role = self.newer.infos.get(pid), self.newer.procs.get(pid), self.roles.get(pid)
        word, starving, inferred = self._state(pid, sample, role)
        is_child = self.view.tree and role is not None and role.kind != "trainer" and role.trainer_pid is not None
        row = ProcessRow(
            pid, role, int(is_child), self._who(pid, info, role), state=word, starving=starving, inferred=inferred,
            user=clean(info.user, 32) if info else "",
        )  # fmt: skip
        if info is not None:
            row.start_ticks, row.command = info.start_ticks, clean(" ".join(info.cmdline) or info.comm)
            if role is not None and (self.view.width >= JOB_FROM or self.view.pattern):
                row.job = brief_of(info)
        if sample is not None:
            row.rss_bytes = sample.rss_bytes
            before = self.older.procs.get(pid)
            if before is not None and (rates := proc_rates(before, sample, self.switched)):
                _set_rates(row, rates)
        if pid in self.on_gpu:
            entries = self.on_gpu[pid]
            row.gpu, row.gpu_mem_bytes = place_of(self.newer, entries), held_bytes(entries)
            row.sm_pct = mean_share([proc.sm_pct for proc in entries.values()])
            row.mem_bw_pct = mean_share([proc.mem_pct for proc in entries.values()])
        return row

    def _who(self, pid: int, info: ProcInfo | None, role: Role | None) -> str:
        if role is not None and role.label:
            return clean(role.label, 80)
        if info is None and pid in self.on_gpu:
            return self._why_unseen()
        if info is None:
            return "?"
        return clean(program_name(info), 80)

    def _why_unseen(self) -> str:
        """Why a process on a GPU is not in /proc: it has just ended, hidepid hides it, or its pid is of another namespace."""
        if is_whole_machine(self.newer.infos):
            return "gone"
        header = self.session.header
        return "hidden by hidepid" if header and header.pid_namespace == INITIAL_PID_NAMESPACE else "in another pid namespace"

    def _state(self, pid: int, sample: ProcSample | None, role: Role | None) -> tuple[str, bool, bool]:
        """The state's word, whether the process starves, whether the state is inferred."""
        word, starves, inferred = word_of(self.session.state_at(pid, self.view.at_ns) if role is not None else 0)
        if word:
            return word, starves, inferred
        if sample is None:
            return "–", False, False
        return "ended" if sample.exit_code == 0 else _KERNEL_STATES.get(sample.state, sample.state), False, False


def _set_rates(row: ProcessRow, rates: ProcRates) -> None:
    # A wait is booked when it ends: one that began before the last second may be longer than it.
    row.runq_pct = None if rates.runq_pct is None else min(100.0, rates.runq_pct)
    row.cpu_pct, row.disk_pct = rates.cpu_pct, rates.blkio_pct
    row.switches_per_s, row.invol_per_s = rates.switches_per_s, rates.invol_per_s
    if rates.read_bytes_per_s is not None and rates.write_bytes_per_s is not None:
        row.disk_bytes_per_s = rates.read_bytes_per_s + rates.write_bytes_per_s


def _cpu_pct(older: ProcSample | None, newer: ProcSample) -> float | None:
    if older is None or older.start_ticks != newer.start_ticks or newer.t_ns <= older.t_ns:
        return None
    return 100 * (newer.utime_ns + newer.stime_ns - older.utime_ns - older.stime_ns) / (newer.t_ns - older.t_ns)


def _ordered(found: list[ProcessRow], view: View) -> list[ProcessRow]:
    if view.sort == "natural":
        return list(reversed(found)) if view.reverse else found
    if view.sort == "user":
        return sorted(found, key=lambda row: row.user, reverse=view.reverse)
    if not view.tree:
        return sorted(found, key=SORTS[view.sort][1], reverse=view.reverse)
    return _by_family(found, SORTS[view.sort][1], view.reverse)


def _by_family(found: list[ProcessRow], key: Key, reverse: bool) -> list[ProcessRow]:
    """Families stay together: each is sorted inside, and the families by their first process in that order."""
    families: dict[int, list[ProcessRow]] = {}
    for row in found:
        families.setdefault((row.role.trainer_pid if row.role else None) or row.pid, []).append(row)
    pick = max if reverse else min
    ordered = sorted(families.values(), key=lambda family: pick(map(key, family)), reverse=reverse)
    return [row for family in ordered for row in sorted(family, key=lambda row: (row.depth, -key(row) if reverse else key(row)))]


# on which GPUs a process is, as the driver lists it

Entries = dict[int, GpuProc]  # GPU -> the driver's entry of one process there


def gpus_by_pid(board: Board) -> dict[int, Entries]:
    """Pid -> its entries. If the driver lists pids of another namespace, pids that also occur here are left out: they mean others."""
    found: dict[int, Entries] = {}
    ours = board.infos if is_foreign_list(board.infos, board.compute_pids) else ()
    for index, gpu in sorted(board.gpus.items()):
        for proc in gpu.procs or map(GpuProc, gpu.compute_pids):
            if proc.pid in ours:
                continue
            found.setdefault(proc.pid, {}).setdefault(index, proc)
    return found


def place_of(board: Board, entries: Entries) -> str:
    """``3``, on a MIG device ``3:1``; several GPUs in three characters: ``0,1``, ``0-7``, or ``9+3`` for GPU 9 and three more."""
    first, last = min(entries), max(entries)
    if len(entries) == 1:
        return board.gpus[first].place(entries[first].gpu_instance)
    joined = f"{first},{last}" if len(entries) == 2 else f"{first}-{last}" if len(entries) == last - first + 1 else ""
    return joined if 0 < len(joined) <= 3 else f"{first}+{len(entries) - 1}"


def held_bytes(entries: Entries) -> int | None:
    """GPU memory in bytes on all GPUs; None if the driver does not report it for one."""
    held = [proc.mem_bytes for proc in entries.values()]
    return sum(known) if len(known := [some for some in held if some is not None]) == len(held) else None


def mean_share(shares: Collection[float | None]) -> float | None:
    """Mean over a process's GPUs; None if the driver does not report it for one."""
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if len(known) == len(shares) > 0 else None


# filters


def _is_wanted(row: ProcessRow, info: ProcInfo | None, view: View) -> bool:
    """True if the row passes --pid (with its family), --user and the filter."""
    if view.pid is not None and view.pid not in (row.pid, row.role.trainer_pid if row.role else None):
        return False
    if view.user is not None and (info is None or view.user not in (info.user, str(info.uid))):
        return False
    return not view.pattern or matches(view.pattern, _texts(row))


def _texts(row: ProcessRow) -> tuple[str, ...]:
    """Texts in which a filter looks for its words."""
    return str(row.pid), row.who.strip(), row.user, row.state, "starving" if row.starving else "", row.job, row.command


# how it is drawn


def heading(view: View, lane_columns: int) -> Line:
    """Column titles, the sort order, and what is left out."""
    order = "" if view.sort == "natural" else f"  by {SORTS[view.sort][0]}{' reversed' if view.reverse else ''}"
    title = HIDDEN if view.hides_bystanders else "state lane, same axis" if lane_columns >= 40 else "state"
    chosen = view.chosen
    return [
        (fit(titles(columns(view.width)), view.width - lane_columns), "head"),
        (fit(f"only {chosen}", lane_columns), "warn") if chosen else (fit(title + order, lane_columns), "head"),
    ]


def lane_columns(view: View) -> int:
    """Columns of the state lanes: as many of the axis's as the table's own columns leave."""
    return min(view.cells, view.width - total(columns(view.width)))


class TableDrawer:
    """Draws rows; keeps finished cells and numbers from one drawing to the next: rows are drawn five times a second and change once."""

    def __init__(self) -> None:
        self._cells: dict[int, RollingCells] = {}
        self._numbers: dict[int, tuple[ProcessRow, object, list[Span]]] = {}

    def line(self, row: ProcessRow, view: View, history: History, axis: Axis, cursor: int | None) -> Line:
        """One process; a starving worker stands out by colour, glyph and word."""
        return [*self._numbers_of(row, view, axis.columns), *with_cursor(self._lane(row.pid, history, axis), cursor)]

    def forget_all_but(self, rows: list[ProcessRow]) -> None:
        """Drop what is kept of processes that have no row any more."""
        pids = {row.pid for row in rows}
        for kept in (self._cells, self._numbers):
            for pid in kept.keys() - pids:
                del kept[pid]

    def _numbers_of(self, row: ProcessRow, view: View, lane_columns: int) -> list[Span]:
        key = (row.pid == view.selected, row.pid in view.tagged, view.width, lane_columns)
        kept = self._numbers.get(row.pid)
        if kept is None or kept[0] is not row or kept[1] != key:
            kept = self._numbers[row.pid] = row, key, _draw_numbers(row, view, lane_columns)
        return kept[2]

    def _lane(self, pid: int, history: History, axis: Axis) -> list[Span]:
        if pid not in history.states:
            self._cells.pop(pid, None)
            return [(" " * axis.columns, "")]
        cell_ns, newest = axis.cell_ns, history.times[-1] // axis.cell_ns
        cells = self._cells.setdefault(pid, RollingCells())
        recent = max(2, 1 + ceil(FEED_EVERY_NS / cell_ns))  # the diagnosis gives the states since it was last asked

        def make_cell(k: int) -> Span:
            return glyph(history.state_cell(pid, k * cell_ns, (k + 1) * cell_ns))

        return cells.spans(axis, newest, (history.trimmed,), make_cell, recent)


def _draw_numbers(row: ProcessRow, view: View, lane_columns: int) -> list[Span]:
    chosen = "selected" if row.pid == view.selected else "starving" if row.starving else ""
    spans = cells(columns(view.width), row, view, chosen=chosen)
    spans.append((" " * (view.width - total(columns(view.width)) - lane_columns), chosen if chosen == "selected" else ""))
    return merge([span for span in spans if span[0]])


def glyph(code: int) -> Span:
    """Glyph and colour of a state code."""
    word, starving, _ = word_of(code)
    if starving:
        return STARVING_GLYPH, "starving"
    return GLYPHS[word], word


# the cells


def _pid(row: ProcessRow, view: View) -> Span:
    return ("*" if row.pid in view.tagged else "") + str(row.pid), "" if row.role else "dim"


def _who(row: ProcessRow, view: View) -> Span:
    if row.role and row.role.kind == "trainer":
        return f"▾ {row.who}" if view.tree else row.who, "title"
    return "  " * row.depth + row.who, "" if row.role else "dim"


def _state_cell(row: ProcessRow, _view: View) -> Span:
    mark = INFERRED_MARK * row.inferred
    if row.starving:
        return f"● STARVING{mark}", "starving"
    return row.state + mark, row.state if row.role else "dim"


def _number(name: str, field: str = "") -> Callable[[ProcessRow, View], Span]:
    """A number; ``field`` gives the thresholds that colour it."""

    def cell(row: ProcessRow, _view: View) -> Span:
        value = getattr(row, name)
        if value is None or not row.role:
            return "–" if value is None else f"{value:.0f}", "dim"
        return f"{value:.0f}", level(FIELDS[field], value) if field else ""

    return cell


def _bytes(name: str) -> Callable[[ProcessRow, View], Span]:
    def cell(row: ProcessRow, _view: View) -> Span:
        value = getattr(row, name)
        return ("–", "dim") if value is None else (size(value), "" if row.role else "dim")

    return cell


def size(value: float) -> str:
    """Bytes in at most six characters."""
    for unit in ("B", "K", "M", "G", "T"):
        if value < 1000 or unit == "T":
            return f"{value:.0f}{unit}" if unit in "BK" or value >= 10 else f"{value:.1f}{unit}"
        value /= 1024
    return ""


_COLUMNS = (
    TableColumn("PID", 8, _pid, order="pid", fills=True),
    TableColumn("USER", 9, lambda row, _: (row.user, "dim"), 170, left=True, order="user"),
    TableColumn("JOB", 20, lambda row, _: (row.job, "dim"), JOB_FROM, left=True),
    TableColumn("GPU", 4, lambda row, _: (row.gpu, ""), 130, order="natural"),
    TableColumn("WHO", 20, _who, left=True, order="natural"),
    TableColumn("STATE", 13, _state_cell, left=True, fills=True),
    TableColumn("CPU%", 6, _number("cpu_pct"), order="cpu"),
    TableColumn("RUNQ%", 6, _number("runq_pct", "runq.pct"), order="runq"),
    TableColumn("DISK%", 6, _number("disk_pct", "psi.io_pct"), 120),
    TableColumn("IO/s", 6, _bytes("disk_bytes_per_s"), 180),
    TableColumn("SW/s", 7, _number("switches_per_s"), 100, order="switches"),
    TableColumn("INV/s", 7, _number("invol_per_s"), 120),
    TableColumn("RSS", 6, _bytes("rss_bytes"), 100, order="mem"),
    TableColumn("GPU-MEM", 8, _bytes("gpu_mem_bytes"), order="gpu-mem"),
    TableColumn("SM%", 5, _number("sm_pct"), 130, order="sm"),
)


def order_at(view: View, x: int) -> str | None:
    """The sort order that the title at column ``x`` of the screen stands for; None if none does."""
    end = 0
    for column in columns(view.width):
        end += column.width
        if x < end:
            return column.order
    return None


@lru_cache(maxsize=8)
def columns(width: int) -> tuple[TableColumn, ...]:
    """The columns that fit a terminal."""
    fitting = tuple(column for column in _COLUMNS if width >= column.from_width)
    while len(fitting) > 3 and total(fitting) > width:
        fitting = fitting[:-1]
    return fitting
