"""Counters of a node: seconds lost by cause, seconds in each state, CPU time taken by culprits; by the trainer's name.

A trainer is its program and rank, or GPU: never a pid, so that a job that is started again goes on in the same series.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from heapq import nlargest
from itertools import islice

from msgspec import Struct, field

from gputop.diagnosis import Engine
from gputop.diagnosis.symptoms import Standing
from gputop.findings import policy
from gputop.findings.policy import TrainerKey
from gputop.findings.verdict import CAUSES, TRAINER_STATES, UNCOSTED, WORKER_STATES, Incident, Ledger
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame
from gputop.system.text import clean

LOST_TO = tuple(cause for cause in CAUSES if cause != "none" and cause not in UNCOSTED)  # what a GPU second can be lost to
MOST_TRAINERS = 32  # names of their own: 50 series each are 1,600 of a node's 2,500
OTHER = "other"  # the name of all trainers beyond those
MOST_CULPRITS = 10  # most names exported, by CPU time taken
MOST_NAMES = 200  # culprits' names that are counted; what more there are is counted as `OTHER`
KEPT_NS = 3600 * SECOND_NS  # for which a trainer's counters are exported after its end: a job that is started again goes on with them
UNNAMED_NS = 5 * SECOND_NS  # so long a trainer without rank is not named while its GPU is not known: NVML lists processes each 1 to 2 s
LATE_NS = 15 * SECOND_NS  # the beat's longest delay is exported for one to two such spans: Prometheus' usual interval
LONGEST_NAME = 80  # characters
_MARKUP = str.maketrans(dict.fromkeys("<>{}`", "·"))  # HTML, templates, Slack: a label may be drawn anywhere


class Trainer(Struct):
    """The series of one name, of however many processes one after the other."""

    name: str
    created_ns: int  # wall clock
    lost_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(LOST_TO, 0.0))
    """GPU seconds lost by cause. Every cause exists from the start at 0: PromQL sees no increase in a series that begins at 0.4 s."""
    gpu_s: float = 0.0
    states_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TRAINER_STATES, 0.0))
    workers_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORKER_STATES, 0.0))
    seen_ns: int = 0  # CLOCK_MONOTONIC
    gpus: frozenset[str] = frozenset()
    unsure_s: float = 0.0  # lost seconds not counted yet: the job stands still, and their cause is not certain
    standing: Standing | None = None  # of the process that is newest; None while none lives


class _CountedLedger(Struct):
    """The part of a process's ledger that is counted already."""

    trainer: Trainer
    gpu_s: float = 0.0
    lost_s: dict[str, float] = field(default_factory=dict)

    def take(self, ledger: Ledger, unsure: Mapping[str, float]) -> None:
        """Count what is new. A counter never decreases, so ``unsure`` (cause -> seconds) is counted later."""
        self.trainer.gpu_s += ledger.gpu_total_s - self.gpu_s
        self.gpu_s = ledger.gpu_total_s
        for cause, lost_s in ledger.by_cause.items():
            more_s = lost_s - unsure.get(cause, 0.0) - self.lost_s.get(cause, 0.0)
            if more_s > 0.0:
                self.trainer.lost_s[cause] = self.trainer.lost_s.get(cause, 0.0) + more_s
                self.lost_s[cause] = self.lost_s.get(cause, 0.0) + more_s


class Totals:
    """Take in every frame, and the engine after each feed."""

    def __init__(self) -> None:
        self.trainers: dict[str, Trainer] = {}
        self.culprits: dict[tuple[str, str], float] = {}  # (name, cause) -> CPU seconds
        self.dropped = 0  # frames that the beat skipped, or the pipe did not take
        self.xids: Counter[int] = Counter()  # GPU -> how often its latest Xid error was another than before
        self._booked: dict[TrainerKey, _CountedLedger] = {}
        self._first_ns: dict[TrainerKey, int] = {}  # trainers that have no name yet -> when they were first seen
        self._incidents = 0  # seen incidents of the engine's list
        self._open: list[Incident] = []
        self._taken: dict[tuple[int, int], float] = {}  # (incident, pid) -> CPU seconds that are counted
        self._late: deque[tuple[int, int]] = deque(maxlen=2)  # (begin of a stretch of `LATE_NS`, longest delay in it)
        self._last_ns = self._last_dropped = 0
        self._last_xid: dict[int, int] = {}

    @property
    def late_s(self) -> float:
        """The beat's longest delay lately."""
        return max((late_ns for _, late_ns in self._late), default=0) / 1e9

    def take_frame(self, frame: Frame) -> None:
        """Count what only frames have."""
        self.dropped += frame.missed
        if frame.cost is not None:
            self.dropped += max(0, frame.cost.dropped - self._last_dropped)
            self._last_dropped = frame.cost.dropped
        begin_ns = frame.t_ns - frame.t_ns % LATE_NS
        if self._late and self._late[-1][0] == begin_ns:
            self._late[-1] = begin_ns, max(self._late[-1][1], frame.late_ns)
        else:
            self._late.append((begin_ns, frame.late_ns))
        for gpu in frame.gpus:
            if gpu.xid is not None and self._last_xid.get(gpu.index) != gpu.xid:
                self._last_xid[gpu.index] = gpu.xid
                self.xids[gpu.index] += 1

    def take(self, board: Board, engine: Engine) -> None:
        """Count what the engine's last feed has found."""
        seconds = (board.t_ns - self._last_ns) / 1e9 if 0 < board.t_ns - self._last_ns <= policy.GAP_NS else 0.0
        self._last_ns = board.t_ns
        for trainer in self.trainers.values():
            trainer.standing, trainer.unsure_s = None, 0.0
        for _, standing in sorted(engine.standing.items()):  # the first has the plain name
            its = self._trainer_of(standing, board)
            if its is not None:
                its.seen_ns, its.standing = board.t_ns, standing
                _add(its.states_s, standing.job.trainer.state.fractions, seconds)
                for worker in standing.job.workers:
                    _add(its.workers_s, worker.state.fractions, seconds)
        self._book(engine)
        self._count_culprits(engine)
        self._forget(board, engine)

    def settle(self, engine: Engine) -> None:
        """Count what is not booked when a stream ends."""
        _, ledgers = engine.settled()
        for key, booked in self._booked.items():
            if key in ledgers:
                booked.take(ledgers[key], {})

    def _trainer_of(self, standing: Standing, board: Board) -> Trainer | None:
        """The series that a process counts into; None while it has no name."""
        key = _key_of(standing)
        if key in self._booked:
            return self._booked[key].trainer
        role, gpus = standing.job.trainer.role, frozenset(gpu.name for gpu in standing.job.gpus)
        if role.rank is None and not gpus and board.t_ns - self._first_ns.setdefault(key, board.t_ns) < UNNAMED_NS:
            return None
        on_gpus = f"{role.label} GPU {','.join(sorted(gpus))}"[:LONGEST_NAME] if gpus else role.label
        name = role.label if role.rank is not None else on_gpus
        stands = self.trainers.get(name)
        if on_gpus in self.trainers or (stands is not None and stands.standing is not None and {*stands.gpus} - gpus):
            name = on_gpus  # another job of the same script and rank runs on other GPUs
        trainer = self._series(label(name), board)
        trainer.gpus = gpus or trainer.gpus
        self._booked[key] = _CountedLedger(trainer)
        self._first_ns.pop(key, None)
        return trainer

    def _series(self, name: str, board: Board) -> Trainer:
        """Series of a name, begun if it is new; that of `OTHER` if there is no room, and no ended trainer can be forgotten."""
        if name not in self.trainers and sum(one != OTHER for one in self.trainers) >= MOST_TRAINERS:
            gone = [one for one in self.trainers.values() if one.seen_ns < board.t_ns - LATE_NS and one.name != OTHER]
            if gone:
                del self.trainers[min(gone, key=lambda one: one.seen_ns).name]
            else:
                name = OTHER
        if name not in self.trainers:
            self.trainers[name] = Trainer(name, board.header.unix_ns_of(board.t_ns), seen_ns=board.t_ns)
        return self.trainers[name]

    def _book(self, engine: Engine) -> None:
        for key, booked in self._booked.items():
            if key in engine.ledgers:
                standing = engine.standing.get(key[0])
                is_unsure = standing is not None and standing.job.life.still_s <= 2 * policy.FAR_S  # later no hang is found any more
                unsure = engine.unmoved(key[0]) if is_unsure else {}
                booked.take(engine.ledgers[key], unsure)
                booked.trainer.unsure_s += sum(unsure.values())

    def _count_culprits(self, engine: Engine) -> None:
        incidents = engine.incidents
        self._open += islice(incidents, self._incidents, None)
        self._incidents = len(incidents)
        for incident in self._open:
            for culprit in incident.culprits:
                if culprit.cpu_s is not None:
                    more_s = culprit.cpu_s - self._taken.get((incident.id, culprit.pid), 0.0)
                    if more_s > 0.0:
                        self._taken[incident.id, culprit.pid] = culprit.cpu_s
                        key = self._name_of(culprit.name), incident.cause
                        self.culprits[key] = self.culprits.get(key, 0.0) + more_s
        over = {incident.id for incident in self._open if incident.end_ns is not None}
        if over:
            self._open = [incident for incident in self._open if incident.id not in over]
            self._taken = {key: cpu_s for key, cpu_s in self._taken.items() if key[0] not in over}

    def _name_of(self, name: str) -> str:
        name = label(name)
        names = {known for known, _ in self.culprits}
        return name if name in names or len(names) < MOST_NAMES else OTHER

    def _forget(self, board: Board, engine: Engine) -> None:
        living = {_key_of(standing) for standing in engine.standing.values()}
        for key in [key for key in self._booked if key not in living and key[0] not in board.procs]:
            del self._booked[key]
        self._first_ns = {key: t_ns for key, t_ns in self._first_ns.items() if key in living}
        for name in [name for name, one in self.trainers.items() if one.seen_ns < board.t_ns - KEPT_NS]:
            del self.trainers[name]


def _key_of(standing: Standing) -> TrainerKey:
    info = standing.job.trainer.info
    return info.pid, info.start_ticks


def label(text: str) -> str:
    """A text from elsewhere as a label's value: no control characters, no markup, not long."""
    return clean(text, LONGEST_NAME).translate(_MARKUP)


def _add(into: dict[str, float], shares: Mapping[str, float], seconds: float) -> None:
    for word, share in shares.items():
        if word in into:
            into[word] += share * seconds


def most_first(taken: Mapping[tuple[str, str], float]) -> Iterator[tuple[str, str, float]]:
    """(name, cause, CPU seconds) of the `MOST_CULPRITS` names that took most, each with its two worst causes."""
    by_name: dict[str, list[tuple[float, str]]] = {}
    for (name, cause), cpu_s in taken.items():
        by_name.setdefault(name, []).append((cpu_s, cause))
    for name, causes in nlargest(MOST_CULPRITS, by_name.items(), key=lambda one: sum(cpu_s for cpu_s, _ in one[1])):
        yield from ((name, cause, cpu_s) for cpu_s, cause in nlargest(2, causes))
