"""The process table: which processes it shows, in which order, with which numbers; its columns and the state lanes.

A state lane is on the same axis as the charts above the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, lru_cache
from itertools import takewhile
from math import ceil

from msgspec import Struct

from gputop.findings.verdict import Incident, Verdict
from gputop.model.board import Board
from gputop.model.fields import FIELDS
from gputop.model.frame import SECOND_NS, GpuProc, ProcInfo, ProcSample
from gputop.model.rates import ProbedSwitches, ProcRates, proc_rates
from gputop.model.roles import COMPILES, Role, is_foreign_list, is_whole_machine
from gputop.stream.history import History
from gputop.stream.session import Session, word_of
from gputop.system.privilege import INITIAL_PID_NAMESPACE
from gputop.system.text import cell_width, clean, fit
from gputop.tui.draw import Line, Span, duration, size
from gputop.tui.draw.columns import TableColumn, cells, titles, total
from gputop.tui.draw.lanes import RollingCells, level, merge, with_cursor
from gputop.tui.draw.search import matches
from gputop.tui.draw.served import COLUMNS, FROM_WIDTH, SERVES, ServedNow, served_at
from gputop.tui.draw.view import Axis, View
from gputop.tui.draw.words import Words, words_of

SPAN_NS = SECOND_NS  # rates in the table are over the last second: shorter ones change faster than anyone reads
LEAST_BYSTANDER_PCT = 1.0  # % of a CPU from which a process outside the training has a row
_KERNEL_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle"}
_NO_GPU = (99,)  # sorts families without a GPU behind the others
GLYPHS = {
    "": " ", "running": "▄", "computing": "▄", "runnable": "▒", "disk": "▪", "memory": "◆", "throttled": "▼", "blocked": "–",
    "ahead": "·", "stopped": "■", "waiting-data": "░", "waiting-gpu": "▂", "transfer": "►", "sleeping": " ", "dead": "×",
}  # fmt: skip
STARVING_GLYPH = "▇"  # never a whole cell: rows under each other stay apart
WIDE_FROM, WIDE = 110, 20  # columns of a terminal from which on STATE has so many, for what a culprit takes of the host
SHARE_SPAN_NS = 2_400_000_000  # ns before the newest tick in which shares may still change: a reading tells of 1.1 s, and comes as late
LEAST_TENTHS_PCT = 10.0  # % of a CPU from which a culprit's CPUs are printed in tenths; fewer would read 0.0
SHARES = " ▁▂▃▄▅▆▇▇"  # eighths of a CPU; never a whole cell: rows under each other stay apart
CULPRIT_MARK, OPEN, FOLDED = "◄", "▾", "▸"
INFERRED_MARK = "~"
MOST_PINNED = 3  # culprits under a trainer; more would take the rows of its workers
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
    job: str = ""  # its pod, Slurm job or container
    arguments: str = ""  # what follows the program's name in the command line
    elapsed_s: float | None = None  # s since it was started
    hurts: int | None = None  # the trainer that lacks what it takes
    takes: tuple[str, str] = ("", "")  # how much a culprit takes, in few words and in more
    branch: str = ""  # the line from the trainer's row to that of a process of its family
    hidden: int = 0  # processes of its family whose rows are folded
    served: ServedNow | None = None  # of a serving job


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


def rows(session: Session, view: View, known: dict[int, Words] | None = None) -> list[ProcessRow]:
    """Trainers with their families, GPU processes without a role, then bystanders that take CPU. ``known``: by pid, the words of the rows
    before, for who asks again and again; it then holds those of these rows."""
    older, newer = session.boards_around(view.at_ns, SPAN_NS)
    table = _RowBuilder(session, view, older, newer, session.feeders_at(newer) | session.roles_at(newer), known or {})
    found = [row for row in table.all() if _is_wanted(row, newer.infos.get(row.pid), view)]
    if known is not None:
        known.clear()
        known.update(table.words)
    view.facts = frozenset(
        title
        for title, known in (("GPU", len(newer.gpus) > 1), ("JOB", any(row.job for row in found)), (SERVES, bool(table.served)))
        if known
    )  # fmt: skip
    return _branched(_folded(_ordered(found, view), view)) if view.tree else _ordered(found, view)


class _RowBuilder:
    """Builds the rows of one moment."""

    def __init__(
        self, session: Session, view: View, older: Board, newer: Board, roles: dict[int, Role], known: Mapping[int, Words]
    ) -> None:  # fmt: skip
        self.session, self.view, self.older, self.newer, self.roles = session, view, older, newer, roles
        self.known, self.words = known, dict[int, Words]()
        self.switched = ProbedSwitches(older, newer)
        self.on_gpu = gpus_by_pid(newer)
        self.guilty = culprits_at(session, view.at_ns)
        self.served = served_at(session, view.at_ns, newer, roles)
        self.cpus = newer.header.cpus or 0

    def all(self) -> list[ProcessRow]:
        """Families, the first culprits of each under its trainer; GPU processes without a role; other culprits; bystanders."""
        strangers = [pid for pid in self.guilty if pid not in self.roles and pid in self.newer.procs]
        shown: list[ProcessRow] = []
        for pid in sorted(self.roles, key=self._place):
            if not self._is_idle_compiler(pid):
                shown.append(self.row(pid))
                shown += [self.row(taker) for taker in [one for one in strangers if self.guilty[one] == pid][:MOST_PINNED]]
        known = {row.pid for row in shown}
        shown += [self.row(pid) for pid in [*sorted(self.on_gpu), *strangers] if pid not in self.roles and pid not in known]
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
            before = self.older.procs.get(pid)
            if pid in shown or (before is sample and not asked):  # of thousands most are not read again within the span
                continue
            share = _cpu_pct(before, sample)
            if asked or (share is not None and share >= LEAST_BYSTANDER_PCT):
                busy.append((-(share or 0.0), pid))
        return [self.row(pid) for _, pid in sorted(busy)]

    def row(self, pid: int) -> ProcessRow:
        info, sample, role = self.newer.infos.get(pid), self.newer.procs.get(pid), self.roles.get(pid)
        word, starving, inferred = self._state(pid, sample, role)
        is_child = self.view.tree and role is not None and role.kind != "trainer" and role.trainer_pid is not None
        row = ProcessRow(pid, role, int(is_child), "", state=word, starving=starving, inferred=inferred, user="")
        if info is None:
            row.who = self._who_without_info(pid, role)
        else:
            words = self._words_of(info, role)
            row.who, row.user, row.command, row.arguments, row.job = words[2:]
            if (served := self.served.get(pid)) is not None:
                row.served, row.arguments = served, "" if self.view.width >= FROM_WIDTH else served.words()
            row.start_ticks, row.elapsed_s = info.start_ticks, self._elapsed_s(info.start_ticks)
        if sample is not None:
            row.rss_bytes = sample.rss_bytes
            before = self.older.procs.get(pid)
            if before is not None and (rates := proc_rates(before, sample, self.switched)):
                _set_rates(row, rates)
        if pid in self.guilty:
            row.hurts, row.takes = self.guilty[pid], _takes(row.cpu_pct, self.cpus)
        if pid in self.on_gpu:
            entries = self.on_gpu[pid]
            row.gpu, row.gpu_mem_bytes = place_of(self.newer, entries), held_bytes(entries)
            row.sm_pct = mean_share([proc.sm_pct for proc in entries.values()])
            row.mem_bw_pct = mean_share([proc.mem_pct for proc in entries.values()])
        return row

    def _elapsed_s(self, start_ticks: int) -> float | None:
        header = self.session.header
        if header is None:
            return None
        since_boot_ns = self.newer.t_ns + header.slept_ns_at(self.newer.t_ns)
        return max(0.0, since_boot_ns / SECOND_NS - start_ticks / header.clock_tick_hz)

    def _words_of(self, info: ProcInfo, role: Role | None) -> Words:
        words = self.known.get(info.pid)
        if words is None or words.info is not info or words.role != role:
            words = words_of(info, role)
        self.words[info.pid] = words
        return words

    def _who_without_info(self, pid: int, role: Role | None) -> str:
        if role is not None and role.label:
            return clean(role.label, 80)
        return self._why_unseen() if pid in self.on_gpu else "?"

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


def culprits_at(session: Session, t_ns: int | None) -> dict[int, int | None]:
    """Pid of each culprit of the verdict, and of the incidents that last, at ``t_ns`` (None is now) -> the trainer that lacks what it
    takes; the verdict's first."""
    found: dict[int, int | None] = {}
    for one in troubles_at(session, t_ns):
        for taker in one.culprits:
            found.setdefault(taker.pid, one.trainer_pid)
    return found


def troubles_at(session: Session, t_ns: int | None) -> list[Verdict | Incident]:
    """The verdict, and the incidents that last, at ``t_ns`` (None is now)."""
    at_ns = session.now_ns if t_ns is None else t_ns
    lasting = [one for one in session.engine.incidents if one.start_ns <= at_ns and (one.end_ns is None or at_ns <= one.end_ns)]
    return [session.verdict_at(t_ns), *lasting]


def _takes(cpu_pct: float | None, cpus: int) -> tuple[str, str]:
    """How much a culprit takes, in at most 13 characters and in at most 20."""
    if cpu_pct is None:
        return "culprit", "culprit"
    if cpu_pct < LEAST_TENTHS_PCT:
        return f"takes {cpu_pct:.0f}% CPU", f"takes {cpu_pct:.0f}% of a CPU"
    brief = f"takes {cpu_pct / 100:.1f}"
    whole = f"{brief} of {cpus} CPUs" if cpus else f"{brief} CPUs"
    return f"{brief} CPU", whole if len(whole) <= WIDE else f"{brief}/{cpus} CPUs"


def _folded(found: list[ProcessRow], view: View) -> list[ProcessRow]:
    """The rows without those of folded families, whose trainers count them."""
    shown: dict[int, ProcessRow] = {}
    for row in found:
        head = shown.get(row.role.trainer_pid or 0) if row.depth and row.role else None
        if head is not None and head.pid in view.folded:
            head.hidden += 1
            head.starving |= row.starving
        else:
            shown[row.pid] = row
    return list(shown.values())


def _branched(found: list[ProcessRow]) -> list[ProcessRow]:
    """The rows with lines from each trainer to its family."""
    below = False
    for row in reversed(found):
        if row.depth:
            row.branch, below = "├ " if below else "└ ", True
        elif row.hurts is None:
            below = False
    return found


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
        families.setdefault((row.role.trainer_pid if row.role else row.hurts) or row.pid, []).append(row)
    pick = max if reverse else min
    ordered = sorted(families.values(), key=lambda family: pick(map(key, family)), reverse=reverse)
    return [row for family in ordered for row in sorted(family, key=lambda row: (_rank(row), -key(row) if reverse else key(row)))]


def _rank(row: ProcessRow) -> int:
    """Place in a family: its trainer, who hurts it, its members."""
    return 2 if row.depth else 1 if row.hurts is not None and row.role is None else 0


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
    words = "starving" if row.starving else "", "culprit" if row.takes[0] else ""
    return str(row.pid), row.who.strip(), row.user, row.state, *words, row.job, row.command


# how it is drawn


def heading(view: View, lane_columns: int) -> Line:
    """Column titles, the sort order, and what is left out."""
    sorted_by = any(column.order == view.sort for column in columns_of(view))  # its title has a mark
    order = "" if view.sort == "natural" or sorted_by else f"  by {SORTS[view.sort][0]}{' reversed' if view.reverse else ''}"
    hidden = HIDDEN if lane_columns >= len(HIDDEN) else HIDDEN.partition(" ")[2]
    title = hidden if view.hides_bystanders else "over time, same axis" if lane_columns >= 40 else "over time"
    chosen = view.chosen
    return [
        (fit(titles(columns_of(view), view.sort, view.reverse), view.width - lane_columns), "head"),
        (fit(f"only {chosen}", lane_columns), "warn") if chosen else (fit(title + order, lane_columns), "head"),
    ]


def lane_columns(view: View) -> int:
    """Columns of the state lanes: as many of the axis's as the table's own columns leave."""
    return min(view.cells, view.width - total(columns_of(view)) - 1)


class TableDrawer:
    """Draws rows; keeps finished cells and numbers from one drawing to the next: few rows change in each."""

    def __init__(self) -> None:
        self._cells: dict[int, RollingCells] = {}
        self._numbers: dict[int, tuple[ProcessRow, object, list[Span]]] = {}

    def line(self, row: ProcessRow, view: View, history: History, axis: Axis, cursor: int | None) -> Line:
        """One process; a starving worker stands out by colour, glyph and word."""
        return [*self._numbers_of(row, view, axis.columns), *with_cursor(self._lane(row, history, axis), cursor)]

    def forget_all_but(self, rows: list[ProcessRow]) -> None:
        """Drop what is kept of processes that have no row any more."""
        pids = {row.pid for row in rows}
        for kept in (self._cells, self._numbers):
            for pid in kept.keys() - pids:
                del kept[pid]

    def _numbers_of(self, row: ProcessRow, view: View, lane_columns: int) -> list[Span]:
        key = (row.pid == view.selected, row.pid in view.tagged, columns_of(view), lane_columns)
        kept = self._numbers.get(row.pid)
        if kept is None or kept[0] is not row or kept[1] != key:
            kept = self._numbers[row.pid] = row, key, _draw_numbers(row, view, lane_columns)
        return kept[2]

    def _lane(self, row: ProcessRow, history: History, axis: Axis) -> list[Span]:
        pid, states, shares, cell_ns = row.pid, history.states.get(row.pid), history.shares.get(row.pid), axis.cell_ns
        cells = self._cells.setdefault(pid, RollingCells())
        if states is not None:  # the diagnosis gives those since its last look, of which none changes any more
            newest = history.states_known_ns(pid) // cell_ns
            return cells.spans(axis, newest, (history.trimmed,), lambda k: glyph(history.cell_of_runs(states, k, cell_ns)), recent=1)
        if shares is None:
            del self._cells[pid]
            return [(" " * axis.columns, "")]
        meaning = "culprit" if row.takes[0] else "dim"

        def share(k: int) -> Span:
            eighths = history.cell_of_runs(shares, k, cell_ns)
            return (SHARES[eighths], meaning) if eighths else (" ", "")

        recent = max(2, 1 + ceil(SHARE_SPAN_NS / cell_ns))  # a bystander is read once a second
        return cells.spans(axis, history.times[-1] // cell_ns, (history.trimmed, meaning), share, recent)


def _draw_numbers(row: ProcessRow, view: View, lane_columns: int) -> list[Span]:
    chosen = "selected" if row.pid == view.selected else "culprit" if row.takes[0] else "starving" if row.starving else ""
    spans = cells(columns_of(view), row, view, chosen=chosen)
    spans.append((" " * (view.width - total(columns_of(view)) - lane_columns), chosen if chosen == "selected" else ""))
    return merge([span for span in spans if span[0]])


@cache
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
    name = f"{row.who} {row.arguments}".rstrip()
    if row.takes[0] and row.role is None:
        name, shown = f"{CULPRIT_MARK} {row.who}", {column.title: column.width for column in columns_of(view)}
        whose = f"{name} ({row.user})" if row.user and "USER" not in shown else name
        return f"{whose if cell_width(whose) < shown['WHO'] else name} {row.arguments}".rstrip(), "culprit"
    name = f"{CULPRIT_MARK} {name}" if row.takes[0] else name
    if row.role and row.role.kind == "trainer":
        if not view.tree:
            return name, "title"
        return f"{FOLDED} +{row.hidden} {name}" if row.hidden else f"{OPEN} {name}", "title"
    return ("  " + row.branch if row.depth else "") + name, "" if row.role else "dim"


def _state_cell(row: ProcessRow, view: View) -> Span:
    if row.takes[0]:
        return row.takes[view.width >= WIDE_FROM], "culprit"
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


def _elapsed(row: ProcessRow, _view: View) -> Span:
    return ("–" if row.elapsed_s is None else duration(row.elapsed_s)), "dim"


_COLUMNS = (
    TableColumn("PID", 8, _pid, order="pid", fills=True, help="process id; * is tagged"),
    TableColumn("USER", 9, lambda row, _: (row.user, "dim"), 170, left=True, order="user", help="user that runs it"),
    TableColumn("JOB", 20, lambda row, _: (row.job, "dim"), 150, left=True, needs="JOB", help="pod, Slurm job or container"),
    TableColumn("GPU", 4, lambda row, _: (row.gpu, ""), order="natural", needs="GPU", help="GPUs that it is on; 3:1 is a MIG device"),
    TableColumn("WHO", 20, _who, left=True, order="natural", grows=((115, 32), (190, 44)), help="program and arguments"),
    *COLUMNS,
    TableColumn("STATE", 13, _state_cell, left=True, fills=True, grows=((WIDE_FROM, WIDE),), help="what it does or awaits; ~: inferred"),
    TableColumn("CPU%", 6, _number("cpu_pct"), order="cpu", help="% of one CPU, all threads"),
    TableColumn("RUNQ%", 6, _number("runq_pct", "runq.pct"), order="runq", help="% of time ready to run without a CPU, main thread"),
    TableColumn("DISK%", 6, _number("disk_pct", "psi.io_pct"), 160, help="% of time waiting for block I/O"),
    TableColumn("IO/s", 6, _bytes("disk_bytes_per_s"), 180, help="bytes a second from and to disks"),
    TableColumn("SW/s", 7, _number("switches_per_s"), 150, order="switches", help="context switches a second, all threads"),
    TableColumn("INV/s", 7, _number("invol_per_s"), 170, help="involuntary context switches a second"),
    TableColumn("RSS", 6, _bytes("rss_bytes"), 100, order="mem", help="resident memory"),
    TableColumn("GPU-MEM", 8, _bytes("gpu_mem_bytes"), order="gpu-mem", help="memory on all of its GPUs"),
    TableColumn("SM%", 5, _number("sm_pct"), 130, order="sm", help="% of time its kernels ran, mean over its GPUs"),
    TableColumn("TIME", 9, _elapsed, 130, order="time", help="time since it was started"),
)
TITLES = tuple(column.title for column in _COLUMNS)
ALWAYS = ("PID", "WHO", "STATE")  # columns without which a row says nothing


def help_of(title: str) -> str:
    """The column in words."""
    return next(column.help for column in _COLUMNS if column.title == title)


def order_at(view: View, x: int) -> str | None:
    """The sort order that the title at column ``x`` of the screen stands for; None if none does."""
    end = 0
    for column in columns_of(view):
        end += column.width
        if x < end:
            return column.order
    return None


def has_family(row: ProcessRow, rows: list[ProcessRow]) -> bool:
    """True if the row is a trainer's that has others of its family, shown or folded."""
    if row.role is None or row.role.kind != "trainer":
        return False
    return row.hidden > 0 or any(one.depth and one.role is not None and one.role.trainer_pid == row.pid for one in rows)


def fold_at(view: View, row: ProcessRow, x: int) -> bool:
    """True if the mark that folds the row's family stands at column ``x`` of the screen."""
    begin = sum(column.width for column in takewhile(lambda column: column.title != "WHO", columns_of(view)))
    return view.tree and row.role is not None and row.role.kind == "trainer" and begin <= x < begin + 2


def columns_of(view: View) -> tuple[TableColumn, ...]:
    """The columns of the user's choice, else those that have something to show and fit the terminal."""
    return columns(view.width, view.facts, view.columns)


@lru_cache(maxsize=8)
def columns(width: int, facts: frozenset[str] = frozenset(), chosen: tuple[str, ...] = ()) -> tuple[TableColumn, ...]:
    """The columns that fit a terminal. ``facts``: titles of columns that have something to show; ``chosen``: titles of the columns that
    the user chose, none if the width decides."""
    if chosen:
        fitting = [one for one in _COLUMNS if one.title in chosen or one.title in ALWAYS]
    else:
        fitting = [one for one in _COLUMNS if width >= one.from_width and (not one.needs or one.needs in facts)]
    fitting = [one.grown(width) for one in fitting]
    while len(fitting) > 3 and total(fitting) > width:
        del fitting[-1]
    return tuple(fitting)
