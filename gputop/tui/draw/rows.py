"""Which processes the table shows, in which order, with which numbers."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, ProcInfo, ProcSample
from gputop.model.rates import ProbedSwitches, ProcRates, proc_rates
from gputop.model.roles import COMPILES, Role, is_whole_machine, program_name
from gputop.session.session import Session, word_of
from gputop.system.privilege import INITIAL_PID_NAMESPACE
from gputop.system.text import clean
from gputop.tui.draw import Span, seats
from gputop.tui.draw.search import searched
from gputop.tui.view import View

SPAN_NS = SECOND_NS
"""Rates in the table are over the last second: faster ones cannot be read."""
LEAST_BYSTANDER_PCT = 1.0
_KERNEL_STATES = {"R": "running", "S": "sleeping", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle"}


class Row(Struct):
    """One process as the table shows it; None is not measured."""

    pid: int
    role: Role | None
    depth: int
    who: str
    state: str
    starving: bool
    inferred: bool
    """The state is: what it waits for cannot be read."""
    user: str
    cpu_pct: float | None = None
    runq_pct: float | None = None
    disk_pct: float | None = None
    disk_bytes_per_s: float | None = None
    switches_per_s: float | None = None
    invol_per_s: float | None = None
    rss_bytes: int | None = None
    gpu_mem_bytes: int | None = None
    sm_pct: float | None = None
    mem_bw_pct: float | None = None
    gpu: str = ""
    """Which, see `gputop.tui.draw.seats`; its memory is on all of them, its shares are means of them."""
    start_ticks: int = 0
    command: str = ""
    drawn: tuple[object, list[Span]] | None = None
    """What was drawn of it, and for which view."""


Key = Callable[[Row], float]


def _same(_row: Row) -> float:
    return 0.0


SORTS: dict[str, tuple[str, Key]] = {
    "natural": ("GPU, trainer, worker", _same),
    "user": ("user", _same),
    "pid": ("pid", lambda row: row.pid),
    "gpu-mem": ("GPU memory", lambda row: -(row.gpu_mem_bytes or -1)),
    "sm": ("SM %", lambda row: -(row.sm_pct if row.sm_pct is not None else -1)),
    "bandwidth": ("GPU memory bandwidth %", lambda row: -(row.mem_bw_pct if row.mem_bw_pct is not None else -1)),
    "cpu": ("CPU %", lambda row: -(row.cpu_pct if row.cpu_pct is not None else -1)),
    "mem": ("resident memory", lambda row: -(row.rss_bytes or -1)),
    "time": ("time running", lambda row: row.start_ticks),
    "runq": ("run-queue %", lambda row: -(row.runq_pct if row.runq_pct is not None else -1)),
    "switches": ("context switches", lambda row: -(row.switches_per_s if row.switches_per_s is not None else -1)),
}
"""Sort orders by name: what it is called, and the key that puts the largest first."""


def rows(session: Session, view: View) -> list[Row]:
    """Trainers with their families, GPU processes without a role, then bystanders that take CPU."""
    older, newer = session.boards_around(view.at_ns, SPAN_NS)
    table = _Table(session, view, older, newer, session.feeders_at(newer) | session.roles_at(newer))
    found = [row for row in table.all() if _wanted(row, newer.infos.get(row.pid), view)]
    return _ordered(found, view)


class _Table:
    """Builds the rows of one moment."""

    def __init__(self, session: Session, view: View, older: Board, newer: Board, roles: dict[int, Role]) -> None:
        self.session, self.view, self.older, self.newer, self.roles = session, view, older, newer, roles
        self.switched = ProbedSwitches(older, newer)
        self.on_gpu = seats.seats(newer)

    def all(self) -> list[Row]:
        shown = [self.row(pid) for pid in sorted(self.roles, key=self._place) if not self._rests(pid)]
        shown += [self.row(pid) for pid in sorted(self.on_gpu) if pid not in self.roles]
        if not self.view.hides_bystanders:
            shown += self._bystanders({row.pid for row in shown})
        return shown

    def _rests(self, pid: int) -> bool:
        """Of torch.compile's dozens, that stay for as long as the training does, those that have nothing to compile."""
        sample = self.newer.procs.get(pid)
        if self.roles[pid].label != COMPILES or sample is None:
            return False
        return (_cpu_pct(self.older.procs.get(pid), sample) or 0.0) < LEAST_BYSTANDER_PCT

    def _place(self, pid: int) -> tuple[int, int, int, int, int]:
        """Families in the order of their GPU; a trainer first, then its workers by number, then helpers."""
        role = self.roles[pid]
        trainer = role.trainer_pid or pid
        gpu = min(self.on_gpu.get(trainer, (99,)))
        order = {"trainer": 0, "worker": 1}.get(role.kind, 2)
        return gpu, trainer, order, role.index if role.index is not None else 0, pid

    def _bystanders(self, shown: set[int]) -> list[Row]:
        asked = bool(self.view.pattern or self.view.pid or self.view.user)
        busy: list[tuple[float, int]] = []
        for pid, sample in self.newer.procs.items():
            if pid in shown:
                continue
            share = _cpu_pct(self.older.procs.get(pid), sample)
            if asked or (share is not None and share >= LEAST_BYSTANDER_PCT):
                busy.append((-(share or 0.0), pid))
        return [self.row(pid) for _, pid in sorted(busy)]

    def row(self, pid: int) -> Row:
        info, sample, role = self.newer.infos.get(pid), self.newer.procs.get(pid), self.roles.get(pid)
        state = self._state(pid, sample, role)
        row = Row(pid, role, self._depth(role), self._who(pid, info, role), *state, clean(info.user, 32) if info else "")
        if info is not None:
            row.start_ticks, row.command = info.start_ticks, clean(" ".join(info.cmdline) or info.comm)
        if sample is not None:
            row.rss_bytes = sample.rss_bytes
            before = self.older.procs.get(pid)
            if before is not None and (rates := proc_rates(before, sample, self.switched)):
                _take_rates(row, rates)
        if pid in self.on_gpu:
            taken = self.on_gpu[pid]
            row.gpu, row.gpu_mem_bytes = seats.place(self.newer, taken), seats.held_bytes(taken)
            row.sm_pct = seats.mean([proc.sm_pct for proc in taken.values()])
            row.mem_bw_pct = seats.mean([proc.mem_pct for proc in taken.values()])
        return row

    def _depth(self, role: Role | None) -> int:
        return 1 if self.view.tree and role is not None and role.kind != "trainer" and role.trainer_pid is not None else 0

    def _who(self, pid: int, info: ProcInfo | None, role: Role | None) -> str:
        if role is not None and role.label:
            return clean(role.label, 80)
        if info is None and pid in self.on_gpu:
            return self._unseen()
        if info is None:
            return "?"
        return clean(program_name(info), 80)

    def _unseen(self) -> str:
        """Who is on a GPU and not in /proc: where all are seen he has just ended, where pids are the driver's own he is another user's."""
        if is_whole_machine(self.newer.infos):
            return "gone"
        header = self.session.header
        return "hidden by hidepid" if header and header.pid_namespace == INITIAL_PID_NAMESPACE else "in another pid namespace"

    def _state(self, pid: int, sample: ProcSample | None, role: Role | None) -> tuple[str, bool, bool]:
        """Its word, whether it starves, whether that is inferred."""
        word, starves, inferred = word_of(self.session.state_at(pid, self.view.at_ns) if role is not None else 0)
        if word:
            return word, starves, inferred
        if sample is None:
            return "–", False, False
        return "ended" if sample.exit_code == 0 else _KERNEL_STATES.get(sample.state, sample.state), False, False


def _take_rates(row: Row, rates: ProcRates) -> None:
    # A wait is booked when it ends, so one that began before the last second may come out longer than it.
    row.runq_pct = None if rates.runq_pct is None else min(100.0, rates.runq_pct)
    row.cpu_pct, row.disk_pct = rates.cpu_pct, rates.blkio_pct
    row.switches_per_s, row.invol_per_s = rates.switches_per_s, rates.invol_per_s
    if rates.read_bytes_per_s is not None and rates.write_bytes_per_s is not None:
        row.disk_bytes_per_s = rates.read_bytes_per_s + rates.write_bytes_per_s


def _cpu_pct(older: ProcSample | None, newer: ProcSample) -> float | None:
    if older is None or older.start_ticks != newer.start_ticks or newer.t_ns <= older.t_ns:
        return None
    return 100 * (newer.utime_ns + newer.stime_ns - older.utime_ns - older.stime_ns) / (newer.t_ns - older.t_ns)


def _wanted(row: Row, info: ProcInfo | None, view: View) -> bool:
    """Whether the row passes --pid (with its family), --user and the filter."""
    if view.pid is not None and view.pid not in (row.pid, row.role.trainer_pid if row.role else None):
        return False
    if view.user is not None and (info is None or view.user not in (info.user, str(info.uid))):
        return False
    return not view.pattern or matches(view.pattern, row)


def matches(pattern: str, row: Row) -> bool:
    """A filter: ``!regex``, each of whose anchors is an end of pid, name, user, state or command line, or words that must all be found in
    these. An expression that is none (yet) hides nobody, see `gputop.tui.draw.search`."""
    fields = (str(row.pid), row.who.strip(), row.user, row.state, "starving" if row.starving else "", row.command)
    text = "\n".join(map(clean, fields))
    if pattern.startswith("!"):
        return searched(pattern[1:], text)
    return all(word in text.lower() for word in pattern.lower().split())


def _ordered(found: list[Row], view: View) -> list[Row]:
    if view.sort == "natural":
        return list(reversed(found)) if view.reverse else found
    if view.sort == "user":
        return sorted(found, key=lambda row: row.user, reverse=view.reverse)
    if not view.tree:
        return sorted(found, key=SORTS[view.sort][1], reverse=view.reverse)
    return _by_family(found, SORTS[view.sort][1], view.reverse)


def _by_family(found: list[Row], key: Key, reverse: bool) -> list[Row]:
    """Families stay together: they are sorted by their first of the order, and inside each the children too."""
    families: dict[int, list[Row]] = {}
    for row in found:
        families.setdefault((row.role.trainer_pid if row.role else None) or row.pid, []).append(row)
    pick = max if reverse else min
    ordered = sorted(families.values(), key=lambda family: pick(map(key, family)), reverse=reverse)
    return [row for family in ordered for row in sorted(family, key=lambda row: (row.depth, -key(row) if reverse else key(row)))]
