"""Contents of the screen over many nodes, second by second: rows, worst first, and similar nodes as one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputop.findings.explanation import Episode
from gputop.findings.trouble import Trouble, is_fault, kind_of, stops_job, unknown
from gputop.findings.verdict import LOOKING, Requests
from gputop.fleet.jobs import LATE, TROUBLED, UNKNOWN, WAITS, WORKS, Books, Job, JobRank, Sight, find_jobs, with_report
from gputop.fleet.link import CONNECTING, UP, NodeState
from gputop.stacks.nccl import NcclReport
from gputop.system import crash
from gputop.system.errors import UserError
from gputop.system.text import clean

PAST_S = 600  # seconds that are remembered of each node
FAULT_S = 10.0  # s for which a node is left out that could not be judged or shown (a choice)
ALIKE = 0.1  # share of the GPUs' time by which the losses of nodes may differ that are alike
SILENT, IDLE = "silent", "idle"  # words of a row beside those of a `JobRank`: it does not answer; nobody trains there
_Made = TypeVar("_Made")
_WORST_FIRST = (LATE, TROUBLED, SILENT, WAITS, UNKNOWN, WORKS, IDLE)


def sight_of(state: NodeState) -> Sight:
    """A node as the jobs see it: its ranks count while it is up."""
    up = state.state == UP
    return Sight(
        state.host, state.summary if up else None, state.age_s or 0.0, state.skew_s or 0.0,
        "" if up or state.state == CONNECTING else state.reason or state.state, state.since_s, state.next_s, state.notes,
    )  # fmt: skip


class Second(NamedTuple):
    """Figures of a node in one second; None: not measured, or the node was not seen."""

    util: float | None  # mean utilization of its GPUs, 0..1
    lost: float | None
    cpu: float | None = None  # busy share of its CPUs
    runnable: float | None = None  # share of the time that its trainers and workers waited for a CPU
    psi_io: float | None = None  # share of the time that something waited for a disk

    @property
    def worked(self) -> float | None:
        """Share of time that its GPUs worked for training: lost time, also a GPU spinning for another rank, is left out."""
        return 1.0 - self.lost if self.lost is not None else self.util


class NodeRow(Struct, frozen=True):
    """One node."""

    sight: Sight
    does: str  # a word of `_WORST_FIRST`
    says: str  # what is wrong with it, or that nothing is
    lost: float | None = None  # share of its trainers' GPU time, with what they spin for other ranks
    worst: JobRank | None = None  # the rank that the row is about
    job: Job | None = None  # of the worst rank

    @property
    def host(self) -> str:
        return self.sight.host

    @property
    def requests(self) -> Requests | None:
        """The requests of the inference server that the row is about; None of another program."""
        return None if self.worst is None else requests_of(self.sight, self.worst)

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that a filter searches."""
        return self.host, self.does, self.says, *((self.job.name, *self.job.identity.values()) if self.job else ())


class Alike(Struct, frozen=True):
    """Nodes that are left out, for rows like theirs are shown."""

    rows: tuple[NodeRow, ...]

    @property
    def hosts(self) -> list[str]:
        return [row.host for row in self.rows]


class Overview:
    """State of all nodes. Call `take` once a second with what the links know, and `look_again` halfway between; read by the same thread.
    While recordings are played, a second is one of their clocks.

    A node that cannot be joined, judged or shown, by a bug that its numbers meet, costs its own row: it is found and left out for a while.
    """

    def __init__(self) -> None:
        self.sights: list[Sight] = []
        self.jobs: list[Job] = []
        self.rows: list[NodeRow] = []  # in the order of the targets
        self.reports: dict[str, NcclReport] = {}  # key of a job that hangs -> NCCL's report
        self.books = Books()
        self.past: dict[str, deque[Second]] = {}
        self.seconds = 0  # that were taken
        self._whole: list[Job] | None = None  # as judged at the last second
        self._half: list[Job] | None = None  # as judged half a second later
        self._faults: dict[str, tuple[float, str]] = {}  # host that is left out -> (until when, why)

    def take(self, sights: Sequence[Sight], seconds: int = 1) -> None:
        """Judge the jobs, and remember the ``seconds`` that have passed."""
        sights = self._without_faults(sights)
        try:
            self._whole = self._judged(sights, self._whole)
            self._show(sights, self._whole)
            self.books.note(self.jobs)
        except Exception:
            self.sights = list(sights)
            if not self._leave_out(lambda trial: deepcopy(trial.books).note(trial.jobs)):
                raise
            self.books.note(self.jobs)
        self.seconds += seconds
        for row in self.rows:
            second = Second(_mean_util(row.sight), row.lost, *_host_figures(row.sight))
            self.past.setdefault(row.host, deque(maxlen=PAST_S)).extend([second] * min(seconds, PAST_S))

    def used(self, use: Callable[[Overview], _Made]) -> _Made:
        """Result of ``use``, such as a page. Nodes with which it fails are left out."""
        try:
            return use(self)
        except UserError:
            raise
        except Exception:
            if not self._leave_out(use):
                raise
        return use(self)

    def take_report(self, key: str, report: NcclReport) -> None:
        """Keep NCCL's report on a job; the job's verdict uses it from the next second on."""
        self.reports[key] = report

    def look_again(self, sights: Sequence[Sight]) -> bool:
        """Judge the jobs between two seconds, so that a straggler is reported half a second earlier; returns whether a verdict has changed.
        If none has, all stays as it was."""
        sights = self._without_faults(sights)
        try:
            self._half = self._judged(sights, self._half if self._half is not None else self._whole)
            if _verdicts(self._half) == _verdicts(self.jobs):
                return False
            self._show(sights, self._half)
        except Exception:
            self.sights = list(sights)
            if not self._leave_out(lambda _: None):
                raise
        return True

    def _without_faults(self, sights: Sequence[Sight]) -> list[Sight]:
        """The sights; of nodes that are left out only the reason."""
        now_s = time.monotonic()
        self._faults = {host: fault for host, fault in self._faults.items() if fault[0] > now_s}
        return [replace(one, summary=None, problem=self._faults[one.host][1]) if one.host in self._faults else one for one in sights]

    def _leave_out(self, use: Callable[[Overview], object]) -> bool:
        """Leave out the nodes with which jobs cannot be judged, or ``use`` fails. False if it fails without any node as well.

        Groups of nodes are tried together with the sound ones, and halved if that fails: few faults among many nodes take few tries.
        """
        if self._fault_with([], use) is not None:
            return False
        sound, left = list[Sight](), [list(self.sights)]
        while left:
            group = left.pop()
            error = self._fault_with([*sound, *group], use)
            if error is None:
                sound += group
            elif len(group) > 1:
                left += [group[len(group) // 2 :], group[: len(group) // 2]]
            else:
                self._faults[group[0].host] = time.monotonic() + FAULT_S, clean(f"it cannot be shown: {crash.reason(error)}", 200)
        sights = self._without_faults(self.sights)
        self._whole, self._half = self._judged(sights, None), None
        self._show(sights, self._whole)
        return True

    def _fault_with(self, sights: Sequence[Sight], use: Callable[[Overview], object]) -> Exception | None:
        """Why these nodes alone cannot be judged or used."""
        trial = copy(self)
        try:
            trial._show(sights, trial._judged(sights, None))
            use(trial)
        except Exception as error:  # noqa: BLE001 - looked for
            return error
        return None

    def _judged(self, sights: Sequence[Sight], a_second_ago: list[Job] | None) -> list[Job]:
        return [with_report(job, self.reports.get(job.key)) for job in find_jobs(sights, a_second_ago)]

    def _show(self, sights: Sequence[Sight], jobs: list[Job]) -> None:
        self.sights, self.jobs, self.rows = list(sights), jobs, node_rows(sights, jobs)

    def servers_of(self, job: Job) -> list[tuple[JobRank, Requests]]:
        """Ranks of the job that are inference servers, each with its requests, as far as its node's verdict is about it."""
        sights = {one.host: one for one in self.sights}
        found = ((one, requests_of(sights[one.host], one)) for one in job.members if one.host in sights)
        return [(one, requests) for one, requests in found if requests is not None]

    @property
    def silent(self) -> int:
        """Number of nodes that do not answer."""
        return sum(row.does == SILENT for row in self.rows)


def _verdicts(jobs: Sequence[Job]) -> set[tuple[object, ...]]:
    return {(job.key, job.symptom, job.cause, *((one.host, one.rank.pid) for one in job.late)) for job in jobs}


def _host_figures(sight: Sight) -> tuple[float | None, float | None, float | None]:
    node = sight.summary.node if sight.summary is not None and sight.is_seen else None
    return (None, None, None) if node is None else (node.cpu, node.runnable, node.psi_io)


def _mean_util(sight: Sight) -> float | None:
    utils = [gpu.util_pct for gpu in sight.summary.gpus if gpu.util_pct is not None] if sight.summary and sight.is_seen else []
    return sum(utils) / len(utils) / 100.0 if utils else None


def node_rows(sights: Sequence[Sight], jobs: Sequence[Job]) -> list[NodeRow]:
    """A row for each node, in their order."""
    members: dict[str, list[tuple[JobRank, Job]]] = {}
    for job in jobs:
        for member in job.members:
            members.setdefault(member.host, []).append((member, job))
    return [_row(sight, members.get(sight.host, [])) for sight in sights]


def _row(sight: Sight, members: list[tuple[JobRank, Job]]) -> NodeRow:
    if not sight.is_seen or sight.summary is None:
        return NodeRow(sight, SILENT, sight.problem or ("no answer" if sight.summary else "connecting …"))
    gone = [one for one in sight.summary.incidents if one.end_unix_s is None and _is_the_nodes(one)]
    if gone and not any(stops_job(job) for _, job in members):
        row = _row_of(sight, members) if members else NodeRow(sight, TROUBLED, "")
        return replace(row, does=TROUBLED, says=f"{gone[0].cause}: {gone[0].headline}")
    if not members:
        return NodeRow(sight, IDLE, sight.summary.verdict.headline or "nothing measured yet")
    return _row_of(sight, members)


def requests_of(sight: Sight, member: JobRank) -> Requests | None:
    """The requests of a rank that is an inference server, if its node's verdict is about that one."""
    summary = sight.summary if sight.is_seen else None
    return summary.requests if summary is not None and summary.verdict.trainer_pid == member.rank.pid else None


def _is_the_nodes(one: Episode) -> bool:
    """True if the node's row names the incident, whatever its jobs do."""
    kind = kind_of(one)
    match kind:
        case Trouble.LOST_GPU:
            return True
        case Trouble.LOSS | Trouble.PAUSED:
            return False  # its jobs have it
        case Trouble.GROWTH | Trouble.ORPHAN | Trouble.LINK | Trouble.SLOWER:
            return False  # no job is slowed by it: it stands among what the nodes report
        case _:
            return unknown(kind)


def _row_of(sight: Sight, members: list[tuple[JobRank, Job]]) -> NodeRow:
    """The row of a node: what its worst rank does, and its mean loss per GPU."""
    worst, job = min(members, key=lambda one: (_WORST_FIRST.index(one[0].does), -(one[0].lost or 0.0), one[0].number))
    parts = [(member.lost, len(member.rank.gpus)) for member, _ in members if member.lost is not None and member.rank.gpus]
    lost = sum(share * gpus for share, gpus in parts) / sum(gpus for _, gpus in parts) if parts else None
    return NodeRow(sight, worst.does, _words(worst, job), lost, worst, job)


def _words(member: JobRank, job: Job) -> str:
    if member.does == LATE:
        return job.cause
    if member.does == TROUBLED:
        return member.rank.cause
    if member.does == WAITS:
        if job.links:
            return "waits for the wire"
        return f"waits for rank {job.late[0].number}" if job.late else "waits for ranks not seen" if job.missing else "waits"
    if not is_fault(job):
        return job.cause
    return LOOKING if member.does == UNKNOWN else member.rank.symptom or "healthy"


def worst_first(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """The nodes, the most urgent first."""
    return sorted(rows, key=lambda row: (_WORST_FIRST.index(row.does), -round(row.lost or 0.0, 1)))


def by_host(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """Rows in the order in which the hosts were named."""
    return list(rows)


def by_loss(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """Rows by lost GPU time, largest first; unknown losses last."""
    return sorted(rows, key=lambda row: -(row.lost if row.lost is not None else -1.0))


def by_cpu(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """Rows by the node's CPU use, busiest first."""
    return sorted(rows, key=lambda row: -((row.sight.summary.node.cpu if row.sight.summary else None) or -1.0))


def by_pace(rows: Sequence[NodeRow]) -> list[NodeRow]:
    """Rows by steps per second, slowest first; nodes without a known pace last."""
    return sorted(rows, key=lambda row: (row.worst.rank.steps_per_s if row.worst else None) or float("inf"))


SORTS = {"worst": worst_first, "host": by_host, "lost": by_loss, "cpu": by_cpu, "steps": by_pace}


def fold(rows: Sequence[NodeRow], room: int) -> list[NodeRow | Alike]:
    """At most ``room`` entries, unless there are more kinds of nodes: the first nodes of each kind, and one entry for its others."""
    if len(rows) <= room:
        return list(rows)
    groups: dict[tuple[object, ...], list[NodeRow]] = {}
    for row in rows:
        groups.setdefault(_likeness(row), []).append(row)
    each = max(map(len, groups.values()), default=1)
    while each > 1 and sum(min(len(group), each) + (len(group) > each) for group in groups.values()) > room:
        each -= 1
    cut = [group[:each] if len(group) > each + 1 else group for group in groups.values()]
    kept = {row.host for group in cut for row in group}
    left_out = [Alike(tuple(group[each:])) for group in groups.values() if len(group) > each + 1]
    return [*(row for row in rows if row.host in kept), *left_out]


def _likeness(row: NodeRow) -> tuple[object, ...]:
    return row.does, row.says, row.job.key if row.job else "", None if row.lost is None else int(row.lost / ALIKE)
