"""The diagnosis of a stream: boards in, states, verdict, ledger and incidents out."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, mul
from typing import Any, NamedTuple

from msgspec.structs import replace

from gputop.diagnosis import hangs
from gputop.diagnosis.badlinks import BadLinks
from gputop.diagnosis.badswitches import BadSwitches
from gputop.diagnosis.facts import intensity, stepclock
from gputop.diagnosis.facts.facts import GpuFacts, Member
from gputop.diagnosis.facts.lateness import Lateness
from gputop.diagnosis.facts.points import Counted
from gputop.diagnosis.facts.window import Window
from gputop.diagnosis.forecast.growth import Growths
from gputop.diagnosis.forecast.whatif import Readings
from gputop.diagnosis.graph import prices, states
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob, walked
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.diagnosis.incidents import Incidents
from gputop.diagnosis.judge import judge, table
from gputop.diagnosis.lostgpus import LostGpus
from gputop.diagnosis.orphans import Orphans
from gputop.diagnosis.phases import Phase
from gputop.diagnosis.settled import Settled
from gputop.diagnosis.slower import Slowdowns
from gputop.diagnosis.symptoms import Standing, judge_job, without_job
from gputop.findings import explanation, policy
from gputop.findings.policy import EARLIER, FEED_EVERY_NS, NOBODY, WINDOW_NS, TrainerKey
from gputop.findings.runs import Run
from gputop.findings.sentence import plain
from gputop.findings.verdict import (
    COMPUTES,
    COORDINATES,
    DROPPED,
    ENDING,
    FEEDS,
    GPU_LOST,
    HELD,
    IDLE,
    PLAYERS,
    SERVES,
    STARTING,
    TRAINING,
    Incident,
    Ledger,
    ProcState,
    Step,
    Verdict,
    WhatIf,
    total,
)
from gputop.model.board import Board
from gputop.model.frame import Frame, Header, ProcInfo
from gputop.model.roles import MANAGER, Role
from gputop.model.serving import ServingNow

LATELY_S = 5  # s: so long a mean of shares makes samples of 100 ms as exact as 7 points (a choice)
MIDDLE_NS = WINDOW_NS // 2
MOST_LEDGERS = 512  # trainers with a ledger of their own, about 0.5 MB; beyond, the earliest ended are summed up (a choice)
MANY = 16  # trainers and workers; with more, feeds come once a second
CROWD = 16  # jobs; with more, each of which costs 0.5 ms (measured), feeds come every two seconds


class _GpuTime(NamedTuple):
    """GPU seconds of one trainer from one feed to the next."""

    t_ns: int
    whole_s: float
    lost_s: float
    own_whole_s: float  # a GPU's seconds, divided among the trainers that share it, so that they sum to the real ones
    own_lost_s: float


class Engine:
    """The diagnosis of one stream. Feed it the board two to five times a second (every half or whole second of a recording); it keeps what
    it needs."""

    def __init__(self) -> None:
        self.states: dict[int, ProcState] = {}
        self.ledgers: dict[TrainerKey, Ledger] = {}
        """The ledger of each trainer that had a GPU, including ended ones; seconds of a shared GPU are divided among its trainers. The key
        `NOBODY` has the seconds of lost GPUs that no trainer uses."""
        self.facts: WalkedFacts | None = None
        self.members: dict[int, Role] = {}
        """Pid -> role of each process that was found to belong to a trainer's family outside its own tree, while both live."""
        self.phases: dict[int, Phase] = {}
        """Pid of a trainer -> its phase."""
        self.standing: dict[int, Standing] = {}
        """Pid of a trainer -> its standing at the last feed."""
        self._window = Window()
        self._worst: Standing | None = None
        self._verdict: Verdict | None = Verdict()
        self._incidents = Incidents()
        self._orphans = Orphans()
        self._growths = Growths()
        self._lost_gpus = LostGpus()
        self._bad_links, self._bad_switches = BadLinks(), BadSwitches()
        self.slowdowns = Slowdowns()
        self.readings = Readings()
        self._pending: dict[int, list[_GpuTime]] = {}  # trainer -> GPU seconds not booked yet
        self._users: Counter[int] = Counter()  # GPU -> number of its trainers
        self._measured: dict[int, int] = {}  # GPU -> until when its time was noted, ns
        self._judged: dict[int, Standing] = {}  # trainer -> its standing when its seconds were last booked
        self._paces: dict[int, float | None] = {}
        """Pid of a trainer -> steps per second since it began to train, or since its CUDA calls were first probed; None if unknown."""
        self._keys: dict[int, TrainerKey] = {}  # pid of a live trainer -> its key
        self._spent: dict[int, dict[str, float]] = {}  # trainer -> seconds in each state while its calls were probed
        self._unmoved: dict[int, dict[str, float]] = {}  # trainer -> seconds booked by cause since its last move
        self._trained: dict[TrainerKey, tuple[Role, ProcInfo, int]] = {}  # the last trainers, and when each was last seen, ns
        self._ended: Step | None = None  # of the last trainer that ended
        self._lately: dict[int, dict[str, float]] = {}  # trainer -> share of each state, the last `LATELY_S` weighing most
        self._workers_spent: dict[str, float] = {}  # seconds in each state of all workers together
        self._header = Header()
        self._settled, self._lateness = Settled(), Lateness()
        self._at_turn = False
        self._board = Board()

    @staticmethod
    def load_causes() -> None:
        """Load the causes now, with messages about plug-ins that are broken, rather than at the first judgement."""
        table()

    @property
    def verdict(self) -> Verdict:
        """The verdict on the last board; put in words only on request, for most readers of a recording need incidents and the last words
        alone."""
        if self._verdict is None and self.facts is not None:
            worst, lost = self._worst, self._lost_gpus.verdict()
            if worst is not None and (lost is None or worst.bereft or worst.fault):
                self._verdict = _paced(worst)
            else:
                self._verdict = lost or self._orphans.verdict() or without_job(self.facts)
        return self._verdict or Verdict()

    @property
    def ledger(self) -> Ledger:
        """The sum of all trainers' ledgers at present, as a new object."""
        return total(self.ledgers.values())

    @property
    def roles(self) -> dict[int, Role]:
        """Pid -> role on the last board."""
        return self._window.roles

    @property
    def family(self) -> dict[int, Role]:
        """Like `roles`, each with its part, and with the members of the jobs' families outside their own trees."""
        jobs = {job.trainer.pid: job for job in (self.facts.jobs if self.facts is not None else ())}
        return self.members | {pid: replace(role, part=_part_of(pid, role, jobs)) for pid, role in self.roles.items()}

    @property
    def servings(self) -> list[ServingNow]:
        """Inference servers at the last feed, as their own metrics have them."""
        return self._window.servings()

    @property
    def incidents(self) -> list[Incident]:
        """All incidents so far, oldest first; a lasting one has no end."""
        return self._incidents.all

    @property
    def fed_ns(self) -> int:
        """The time of the last feed, 0 before the first."""
        return self._window.t_ns

    def follow(self, board: Board, frame: Frame, every_ns: int = FEED_EVERY_NS) -> bool:
        """`look` at the next frame of a stream, which ``board`` holds already, and `feed` if it is time; returns whether it fed."""
        self.look(frame)
        every_ns = max(every_ns, self.pace_ns)
        if not frame.ticks or not self.is_due(frame.t_ns, every_ns):
            return False
        self.feed(board, every_ns)
        return True

    @property
    def pace_ns(self) -> int:
        """The time from one feed to the next, ns."""
        return FEED_EVERY_NS if len(self.states) <= MANY else (2 if len(self.standing) <= CROWD else 4) * FEED_EVERY_NS

    def is_due(self, t_ns: int, every_ns: int) -> bool:
        """True if ``t_ns`` lies in another stretch of the clock than the last feed; each stretch has ``every_ns``."""
        return t_ns // every_ns != self.fed_ns // every_ns

    def begin(self) -> None:
        """Keep the state of processes and GPUs, and forget all findings: from now on there are only new ones."""
        self.ledgers, self._incidents, self._orphans, self._ended = {}, Incidents(), Orphans(), None
        for told in (self._pending, self._spent, self._workers_spent, self._unmoved, self._trained):
            told.clear()
        self.readings = Readings()
        self._growths.begin()
        self._lost_gpus.begin()
        self._bad_links.begin()
        self._bad_switches.begin()
        self.slowdowns.begin()
        self._window.begin()

    def look(self, frame: Frame) -> None:
        """Take in a frame between two feeds (optional): more samples of the processes' waits, at a few microseconds each.

        Without the probes only these samples distinguish the kinds of sleep.
        """
        self._window.look(frame)
        if frame.marks:
            self.slowdowns.markers.note(frame.marks)

    def feed(self, board: Board, every_ns: int = FEED_EVERY_NS, *, at_turn: bool = False) -> None:
        """Take in the board as it stands. Feeding the same moment twice changes nothing. ``every_ns``: the time between two feeds.
        ``at_turn``: what follows is known to differ, so that all seconds so far are booked by this judgement."""
        before, self._at_turn = self._window.t_ns, at_turn
        if not self._window.push(board, max(policy.GAP_NS, 2 * every_ns)):
            return
        self._header = board.header
        seconds = (board.t_ns - before) / 1e9 if self._window.continues else 0.0
        if not self._window.continues:
            self._settled, self._lateness = Settled(), Lateness()  # what was before the gap counts for no new window
        parties, shares = self._window.parties(board), self._window.shares()
        if self._settled.rests(board.t_ns, parties, shares, every_ns) and not self._is_asked_anew():
            self._hold(board, seconds)
            return
        facts = walked(self._window.facts(board))
        walks = [Walk(job, facts) for job in facts.jobs]
        jobs = intensity.with_waste([states.with_states(walk) for walk in walks])
        facts = replace(facts, jobs=self._lateness.note(jobs, board.t_ns))
        facts = replace(facts, jobs=hangs.with_hangs(facts))
        facts = replace(facts, jobs=[walk.run(job, facts) for walk, job in zip(walks, facts.jobs, strict=True)])
        facts = replace(facts, jobs=[prices.put_down(walk, job, facts) for walk, job in zip(walks, facts.jobs, strict=True)])
        facts = self.facts = replace(facts, jobs=[judge(walk, job, facts) for walk, job in zip(walks, facts.jobs, strict=True)])
        if not self._window.continues:
            self.phases = {}
        self._users = Counter(gpu.index for job in facts.jobs for gpu in job.gpus)
        standing = [self._judge(job, facts, seconds) for job in facts.jobs]
        if not self._window.continues:
            self._measured.clear()
        self._measured |= {gpu.index: board.t_ns for gpu in facts.gpus if gpu.gone or gpu.util_now is not None}
        self.standing = {one.job.trainer.pid: one for one in standing}
        self.states = {proc.pid: proc.state for job in facts.jobs for proc in (job.trainer, *job.workers)}
        for one in standing:
            if one.phase.word == TRAINING:
                self.readings.note(one.job, facts, one.cause)
        standing = _on_gpus(standing)
        self.members |= {one.pid: _role_of(one, job) for job in facts.jobs for one in job.members}
        self._incidents.note(board, seconds, [one for one in standing if not one.bereft])
        self._book_jobless(self._lost_gpus.note(board, facts, seconds, standing, self._incidents))
        self._orphans.note(board, self.roles, facts.takers, self._incidents)
        self._growths.note(board, facts, self._incidents)
        self._bad_links.note(board, facts, self._incidents)
        self._bad_switches.note(board, self._incidents)
        self.slowdowns.changes.note(board, facts)
        self._note_steps(board)
        self._forget_ended(board, facts.jobs)
        self._worst, self._verdict = _worst_of(standing), None
        awaits = not facts.gpus or bool(self._orphans.known) or any(gpu.loss is not None for gpu in facts.gpus)
        self._settled.note(board.t_ns, parties, shares, standing, awaits=awaits)

    def _is_asked_anew(self) -> bool:
        """True if a server's metrics have other numbers than at the last judgement, which its verdict then has not told yet."""
        now, judged = self._window.servings(), [] if self.facts is None else self.facts.servings
        return now is not judged and [replace(one, t_ns=0) for one in now] != [replace(one, t_ns=0) for one in judged]

    def _hold(self, board: Board, seconds: float) -> None:
        """Let the findings stand: only time is booked, and incidents last."""
        for one in self.standing.values():
            gpus = [gpu if gpu.split else replace(gpu, util_now=self._window.gpu_util(gpu.index)) for gpu in one.job.gpus]
            self._count(one, replace(one.job, gpus=gpus), board.t_ns, seconds)
        self._measured |= {index: board.t_ns for index in board.gpus if self._window.gpu_util(index) is not None}
        self._incidents.note(board, seconds, _on_gpus(list(self.standing.values())))
        self._note_steps(board)

    def _note_steps(self, board: Board) -> None:
        self._board = board
        self.slowdowns.note(board, self.standing, self.counted, self._paces, self.ledgers, self._incidents)

    def runs(self) -> tuple[list[Run], list[Run]]:
        """(runs that have ended, runs that last), oldest first."""
        return self.slowdowns.rows(self._board, self.ledgers)

    def by_itself(self, pid: int) -> Standing | None:
        """Standing of the rank that others wait for, as if no rank waited: why it is late. None for any other trainer."""
        standing, facts = self.standing.get(pid), self.facts
        if standing is None or facts is None or standing.job.ranks.straggler is None or standing.job.ranks.straggler.pid != pid:
            return None
        walk = Walk(replace(standing.job, ranks=replace(standing.job.ranks, straggler=None), claims=[], pools={}), facts)
        job = walk.run(states.with_states(walk), facts)
        return judge_job(judge(walk, prices.put_down(walk, job, facts), facts), facts, standing.phase)

    def _judge(self, job: WalkedJob, facts: WalkedFacts, seconds: float) -> Standing:
        standing = judge_job(job, facts, self.phases.get(job.trainer.pid))
        self.phases[job.trainer.pid] = standing.phase
        key = self._keys[job.trainer.pid] = job.trainer.pid, job.trainer.info.start_ticks
        self._trained[key] = job.trainer.role, job.trainer.info, facts.t_ns
        if standing.cause == "pause":
            self._window.note_pauses(job)
        if standing.phase.word not in (STARTING, ENDING):
            self._paces[job.trainer.pid] = self._window.pace(job.trainer.pid)
        self._count(standing, job, facts.t_ns, seconds)
        return standing

    def _count(self, standing: Standing, job: WalkedJob, t_ns: int, seconds: float) -> None:
        """Count the time since the last feed: what the processes did, and GPU seconds, which the standing books once they are due."""
        if standing.phase.word not in (STARTING, ENDING) and job.cuda.calls is not None:
            _add(self._spent.setdefault(job.trainer.pid, {}), job.trainer.state, seconds)
        self._lately[job.trainer.pid] = _blended(self._lately.get(job.trainer.pid, {}), job.trainer.state, seconds)
        for worker in job.workers:
            _add(self._workers_spent, worker.state, seconds)
        self._note_time(job, t_ns, seconds)
        if standing.phase.books == DROPPED:
            self._ledger_of(job.trainer.pid, self.ledgers).gpu_idle_s += _whole_s(self._pending.pop(job.trainer.pid, []))
        elif standing.phase.books != HELD and job.trainer.pid in self._pending:
            is_judged = standing.bereft or self._at_turn
            due = self._pending.pop(job.trainer.pid) if is_judged else self._due(job.trainer.pid, t_ns)
            _book(self._ledger_of(job.trainer.pid, self.ledgers), due, standing.shares)
            self._rebook(standing, sum(part.own_lost_s for part in due))
            self._judged[job.trainer.pid] = standing
            _set_seconds(standing, due)

    def _rebook(self, standing: Standing, lost_s: float) -> None:
        """Move seconds lost while nothing of a job moved to the hang, once it is known to be one."""
        pid = standing.job.trainer.pid
        unmoved = self._unmoved.setdefault(pid, {})
        if standing.job.life.still_s == 0.0:
            unmoved.clear()
        elif standing.hangs:
            self._ledger_of(pid, self.ledgers).move(unmoved, standing.cause)
            unmoved.clear()
        else:
            for cause, share in standing.shares.items():
                unmoved[cause] = unmoved.get(cause, 0.0) + share * lost_s

    def unmoved(self, pid: int) -> Mapping[str, float]:
        """Seconds of a trainer's ledger by cause that would move to a hang if one were found: booked since its last move."""
        return self._unmoved.get(pid, {})

    def _step(self) -> Step | None:
        """Step time of the trainer in the verdict, over the whole stream (only the latest pace if it comes from the GPU's rhythm); without
        trainers, of the last trainer that ended. None if unknown."""
        if self._worst is not None:
            return self._latest_step_of(self._worst.trainer_pid)
        return self._ended

    def _latest_step_of(self, pid: int) -> Step | None:
        """A trainer's step, over the whole stream, or else the latest one."""
        standing = self.standing.get(pid)
        return self.step_of(pid) or (None if standing is None else standing.job.step)

    def step_of(self, pid: int) -> Step | None:
        """A trainer's step, over the whole stream; None where no call of CUDA shows its steps."""
        pace, spent = self._paces.get(pid), self._spent.get(pid)
        return stepclock.split(pace, "CUDA calls", explanation.shares(spent)) if pace is not None and spent else None

    def counted(self, pid: int) -> Counted | None:
        """Counters of a process's CUDA calls by which its steps are counted; None if they are not probed."""
        return self._window.counted(pid)

    def shares_of(self, pid: int) -> Mapping[str, float]:
        """State -> share of a trainer's time over the last seconds; empty if it is none, or was not judged yet."""
        return self._lately.get(pid, {})

    def settled(self) -> tuple[list[Incident], dict[TrainerKey, Ledger]]:
        """All incidents and ledgers, including seconds not booked yet, which are booked by each job's last standing."""
        ledgers = {key: total([ledger]) for key, ledger in self.ledgers.items()}
        for pid in self._pending:
            self._settle(pid, ledgers)
        unbooked = list(self._unbooked(self._pending))
        return self._lost_gpus.settled(self._incidents.settled(unbooked), unbooked), ledgers

    def _ledger_of(self, pid: int, ledgers: dict[TrainerKey, Ledger]) -> Ledger:
        return ledgers.setdefault(self._keys[pid], Ledger())

    def _settle(self, pid: int, ledgers: dict[TrainerKey, Ledger]) -> None:
        if pending := self._pending.get(pid):
            times, ledger = self._rest_of(pid), self._ledger_of(pid, ledgers)
            _book(ledger, times, self._judged[pid].shares if pid in self._judged else {})
            ledger.gpu_idle_s += _whole_s(pending[len(times) :])

    def _unbooked(self, pids: Iterable[int]) -> Iterator[Standing]:
        """The last standings of the jobs, with their GPU seconds that are not booked yet."""
        for pid in pids:
            if pid in self._judged:
                yield _set_seconds(replace(self._judged[pid]), self._rest_of(pid))

    def _rest_of(self, pid: int) -> list[_GpuTime]:
        """GPU seconds not yet booked for a trainer; without its end if it is ending or has vanished."""
        pending = self._pending.get(pid, [])
        return _without_end(pending) if pid not in self.phases or self.phases[pid].word == ENDING else pending

    def _forget_ended(self, board: Board, jobs: Iterable[WalkedJob]) -> None:
        """Drop the state of trainers that have ended, reaped or not: their pid may be reused."""
        self.members = {pid: role for pid, role in self.members.items() if pid in board.procs and role.trainer_pid in board.procs}
        kept: tuple[dict[int, Any], ...] = (
            self._pending, self._judged, self._spent, self._lately, self._paces, self._unmoved, self._keys,
        )  # fmt: skip
        gone = {pid for known in kept for pid in known} - {job.trainer.pid for job in jobs}
        self.phases = {job.trainer.pid: self.phases[job.trainer.pid] for job in jobs}
        unbooked = list(self._unbooked(gone))
        self._incidents.count(unbooked)
        self._lost_gpus.count(unbooked)
        for pid in gone:
            self._settle(pid, self.ledgers)
        self.slowdowns.end([self._keys[pid] for pid in gone if pid in self._keys], board, self.ledgers)
        for pid in gone:
            self._ended = self.step_of(pid) or self._ended
            for known in kept:
                known.pop(pid, None)
        self._sum_earlier()
        while len(self._trained) > explanation.MOST_TRAINED:
            del self._trained[next((key for key in self._trained if key[0] not in self._keys), next(iter(self._trained)))]

    def _sum_earlier(self) -> None:
        """Merge the ledgers of the trainers that ended first, beyond `MOST_LEDGERS`, into one."""
        live = {EARLIER, NOBODY, *self._keys.values()}
        while len(self.ledgers) > MOST_LEDGERS and (ended := next((key for key in self.ledgers if key not in live), None)):
            self.ledgers.setdefault(EARLIER, Ledger()).include(self.ledgers.pop(ended))

    def _note_time(self, job: WalkedJob, t_ns: int, seconds: float) -> None:
        """Note the job's GPU seconds. They are booked once they lie in the middle of a window that can be judged."""
        known = [gpu for gpu in job.gpus if gpu.gone or gpu.util_now is not None]
        if not known:
            return
        waste = sum(job.gpu_use.waste.values())
        whole = [self._unnoted_s(gpu, t_ns, seconds) if gpu.gone else seconds for gpu in known]
        lost = [(1.0 if gpu.gone else min(1.0, 1.0 - (gpu.util_now or 0.0) + waste)) * s for gpu, s in zip(known, whole, strict=True)]
        parts = [1 / self._users[gpu.index] for gpu in known]
        pending = self._pending.setdefault(job.trainer.pid, [])
        pending.append(_GpuTime(t_ns, sum(whole), sum(lost), sum(map(mul, whole, parts)), sum(map(mul, lost, parts))))

    def _unnoted_s(self, gpu: GpuFacts, t_ns: int, seconds: float) -> float:
        """Seconds of a lost GPU since it was last noted, including those in which it was already silent but not known to be lost."""
        before_ns, since_ns = self._measured.get(gpu.index, 0), gpu.loss.since_ns if gpu.loss is not None else t_ns
        return (t_ns - max(before_ns, since_ns)) / 1e9 if 0 < before_ns < t_ns - seconds * 1e9 else seconds

    def _book_jobless(self, lost_s: float) -> None:
        if lost_s > 0.0:
            self.ledgers.setdefault(NOBODY, Ledger()).add(lost_s, lost_s, {GPU_LOST: 1.0})

    def _due(self, pid: int, t_ns: int) -> list[_GpuTime]:
        """The pending seconds before the middle of the window, which judges them best; they are removed from the pending ones."""
        pending = self._pending[pid]
        count = bisect_right(pending, t_ns - MIDDLE_NS, key=attrgetter("t_ns"))
        due, self._pending[pid] = pending[:count], pending[count:]
        return due

    def what_if(self, one: Verdict | Incident) -> list[WhatIf]:
        """Predictions for the trainer of a verdict or incident: what changes would bring, by the last windows in which its cause stood."""
        if one.cause == GPU_LOST:
            return []
        return self.readings.options(one.trainer_pid, one.cause, one.culprits, one.speedup_max, one.fixes)

    def explain(self, start_ns: int = 0, before: Ledger | None = None) -> explanation.Explanation:
        """All findings of the stream, in the shape of `gputop.findings.explanation`; ready for JSON.

        With ``start_ns`` and the ledger ``before`` of that moment: only findings after it, incidents that began earlier in full.
        """
        return plain(self.found(start_ns, before))

    def found(self, start_ns: int = 0, before: Ledger | None = None) -> explanation.Explanation:
        """Like `explain`, but each text keeps its template and facts, for recordings (`gputop.findings.sentence`)."""
        settled, ledgers = self.settled()
        incidents = [incident for incident in settled if incident.end_ns is None or incident.end_ns > start_ns]
        verdict, ledger = replace(self.verdict, step=self._step()), total(ledgers.values()).since(before or Ledger())
        seen = [key for key, (_, _, seen_ns) in self._trained.items() if seen_ns > start_ns][-explanation.MOST_TRAINED :]
        trainers = [(*self._trained[key][:2], ledgers.get(key, Ledger()) if before is None else None) for key in seen]
        return explanation.explanation(
            verdict, ledger, incidents, self._workers_spent, self._header, self._window.t_ns, self.what_if, trainers=trainers,
            seen_runs=[one for part in self.runs() for one in part][-explanation.MOST_TRAINED :], step_of=self._latest_step_of,
        )


def _part_of(pid: int, role: Role, jobs: Mapping[int, WalkedJob]) -> str:
    """The part of a process of a job's own tree; empty if it is not known."""
    if role.kind == "trainer":
        return "" if pid not in jobs else COMPUTES if jobs[pid].gpus else FEEDS
    if role.kind == "worker":
        return FEEDS
    return SERVES if role.label == MANAGER else COORDINATES if role.trainer_pid is None else ""


def _role_of(member: Member, job: WalkedJob) -> Role:
    return Role("helper", job.trainer.pid, label=f"{PLAYERS[member.part]} {member.name}", part=member.part)


def _book(ledger: Ledger, times: Iterable[_GpuTime], shares: dict[str, float]) -> None:
    for part in times:
        ledger.add(part.own_whole_s, part.own_lost_s, shares)


def _whole_s(times: Iterable[_GpuTime]) -> float:
    return sum(part.own_whole_s for part in times)


def _set_seconds(one: Standing, times: Sequence[_GpuTime]) -> Standing:
    """The standing, with the GPU seconds that are booked by it."""
    one.whole_s, one.lost_s = sum(part.whole_s for part in times), sum(part.lost_s for part in times)
    one.booked = [(part.t_ns, part.own_whole_s, part.own_lost_s) for part in times]
    return one


def _without_end(times: list[_GpuTime]) -> list[_GpuTime]:
    """The times without the last ones in which nothing ran: an interpreter that ends gives up its workers, its modules and its GPU."""
    worked = (i + 1 for i, part in enumerate(times) if part.lost_s < policy.AT_END * part.whole_s)
    return times[: max(worked, default=0)]


def _add(spent: dict[str, float], state: ProcState, seconds: float) -> None:
    for word, share in state.fractions.items():
        spent[word] = spent.get(word, 0.0) + share * seconds


def _blended(shares: dict[str, float], state: ProcState, seconds: float) -> dict[str, float]:
    """The shares, which follow those of the state, of ``seconds``; the first ones are taken as they are."""
    kept = math.exp(-seconds / LATELY_S) if shares else 0.0
    words = {**shares, **state.fractions}
    return {word: kept * shares.get(word, 0.0) + (1.0 - kept) * state.fractions.get(word, 0.0) for word in words}


def _paced(one: Standing) -> Verdict:
    """The verdict with the step, which only the worst standing's verdict has."""
    return replace(one.verdict, step=one.job.step)


def _on_gpus(standing: list[Standing]) -> list[Standing]:
    """The standings of jobs with GPUs; all standings if no job has one."""
    return [one for one in standing if one.job.gpus] or standing


def _worst_of(standing: list[Standing]) -> Standing | None:
    """The standing for the verdict. Of jobs that share a GPU, and of which each waits for the other, it is the one that was there first."""
    worst = max(standing, key=_weight, default=None)
    if worst is None or worst.cause != "gpu-shared":
        return worst
    places = {gpu.place for gpu in worst.job.gpus}
    alike = [one for one in standing if one.cause == worst.cause and any(gpu.place in places for gpu in one.job.gpus)]
    return min(alike, key=lambda one: one.job.trainer.info.start_ticks)


def _weight(one: Standing) -> tuple[bool, bool, bool, bool, bool, float]:
    """Sort key, worst last: lost or hung GPU; straggler (it explains its peers); fault; any trouble; not idle; then time lost, rounded so
    that a recording orders equal ranks alike."""
    lost = round(one.job.lost, 2) if one.job.lost is not None else -1.0
    return one.bereft or one.hangs, one.cause == "straggler-rank", one.fault, one.troubled, one.phase.word != IDLE, lost
