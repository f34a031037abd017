"""The memory of one trainer, for longer than the window: its start, its workers' births, its pauses, its pace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from gputop.diagnosis.facts import feeders, waits
from gputop.diagnosis.facts.facts import JobFacts, LoaderFacts, PauseFacts
from gputop.diagnosis.facts.family import Family
from gputop.diagnosis.facts.life import Pulse
from gputop.diagnosis.facts.pauses import Span, Turns, length_s, merged, repeated
from gputop.diagnosis.facts.respawns import Respawns
from gputop.diagnosis.facts.starts import Start
from gputop.diagnosis.facts.stepclock import Clock
from gputop.diagnosis.facts.takers import born_ns
from gputop.diagnosis.facts.tracks import GpuTrack
from gputop.findings import policy
from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, ProcSample
from gputop.model.roles import Role

RHYTHM_NS = 4_500_000_000  # ns between two computations of a GPU's rhythm, which cover many seconds and cost as much as a feed (a choice)


class Past:
    """One trainer's past. Drop it when the trainer ends: its pid may be reused."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.family = Family()
        self.has_clock = False  # a window of training with probed calls was noted
        self.named = False  # its workers take torch's name
        self._pulse: Pulse | None = None  # its signs of life
        self._births: dict[int, int] = {}  # pid of a worker after the first set -> when it was first seen, ns
        self._first_set: tuple[int, int] | None = None  # (when its first workers were seen, start_ticks of the last one)
        self._pace: float | None = None
        self._pauses: list[Span] = []  # pauses that were judged to be some, including those before the window
        self._respawns = Respawns()
        self._rhythm_ns = 0
        self._start: Start | None = None
        self._turns = Turns()

    @property
    def has_had_workers(self) -> bool:
        """True if a first set of workers was seen."""
        return self._first_set is not None

    def note_worker(self, sample: ProcSample, board: Board) -> None:
        """Note a worker that is seen for the first time."""
        self.note_child(sample, board)
        seen_ns, last_ticks = self._first_set or (board.t_ns, 0)
        if seen_ns == board.t_ns:
            self._first_set = seen_ns, max(last_ticks, sample.start_ticks)
        elif max(board.t_ns - seen_ns, (sample.start_ticks - last_ticks) * SECOND_NS // board.header.clock_tick_hz) > policy.FRESH_NS:
            self._births[sample.pid] = board.t_ns

    def note_child(self, sample: ProcSample, board: Board) -> None:
        """Note when a worker, or a child that may become one, was born."""
        born = born_ns(sample, board)
        self._respawns.note_birth(born if board.t_ns - born <= policy.STALE_NS else board.t_ns)

    def note_pauses(self, pauses: Iterable[Span], now_ns: int) -> None:
        """Remember the pauses of a window with the verdict pause: see `PauseFacts.repeated`."""
        self._pauses = merged([*self._pauses, *pauses], now_ns)

    def loader(self, job: JobFacts, start: Start, board: Board) -> LoaderFacts:
        """Facts about the pool of workers, without the cost of births (`respawned`)."""
        self._births = {pid: seen_ns for pid, seen_ns in self._births.items() if seen_ns >= board.t_ns - policy.BIRTHS_NS}
        worked_ns = max((gpu.worked_ns for gpu in job.gpus), default=0)
        by_itself = start.is_by_itself(worked_ns, [born_ns(worker.newer, board) for worker in job.workers], board.t_ns)
        births = [] if by_itself else sorted(self._births.values())
        return replace(job.loader, is_torchs=feeders.is_torchs(job), births=births, by_itself=by_itself)

    def start(self, job: JobFacts, board: Board, since_ns: int, held_bytes: float) -> Start:
        """The trainer's start, brought up to date. Shortly after its birth its GPU's utilization still covers the process before it."""
        trainer, born = job.trainer, born_ns(job.trainer.newer, board)
        start = self._start = self._start or Start(born, min(born, trainer.began_ns) + policy.READING_NS)
        worked_ns = max((gpu.worked_ns for gpu in job.gpus), default=0)
        still = trainer.still_s >= policy.STUCK_S and feeders.threads_at_work(job)
        queued = trainer.kinds.get(waits.QUEUE, 0.0) >= policy.MOST
        loading_ns = max((born_ns(worker.newer, board) for worker in job.workers), default=0) if queued else 0
        start.note_batches(trainer, job.workers, board.t_ns)
        start.note(worked_ns, held_bytes, still, since_ns, board.t_ns, loading_ns)
        return start

    def alive(self, job: JobFacts, board: Board, roles: Mapping[int, Role], children: Mapping[int, Sequence[int]]) -> JobFacts:
        """The job with its signs of life. ``children``: of each process."""
        self._pulse = self._pulse or Pulse(board.t_ns, board.t_ns, board.t_ns)
        return self._pulse.note(job, board, roles, children)

    def respawned(self, job: JobFacts, calls_made: int | None, oldest_ns: int, now_ns: int) -> LoaderFacts:
        """The pool with the cost of replaced workers, if at least half are young. (A pool that replaces single workers keeps working.)"""
        utils, loader = [gpu.util_now for gpu in job.gpus if gpu.util_now is not None], job.loader
        self._respawns.note(now_ns, calls_made, job.trainer.newer.vol, sum(utils) / len(utils) if utils else None)
        if 2 * len(loader.births) >= max(1, len(job.workers)) and (cost := self._respawns.cost(oldest_ns)) is not None:
            return replace(loader, respawned=cost[0] * 1e9 / max(1, now_ns - oldest_ns), respawn_s=cost[1])
        return loader

    def pauses(self, job: JobFacts, quiet: list[Span], oldest_ns: int, now_ns: int) -> PauseFacts:
        """The trainer's pauses. ``quiet``: spans without CUDA calls between steps."""
        self._turns.note(job.workers, job.idle or 0.0, now_ns)
        away = self._turns.spans(oldest_ns, now_ns)
        spans = [*min((gpu.pauses for gpu in job.gpus), key=length_s, default=()), *quiet, *away]
        before = repeated(merged([*self._pauses, *spans], now_ns), now_ns)
        return PauseFacts(length_s(quiet, oldest_ns), length_s(away, oldest_ns), spans, before)

    def rhythm(self, job: JobFacts, tracks: Iterable[GpuTrack], now_ns: int) -> float | None:
        """Steps per second by the first of its GPUs with a clear rhythm, computed every `RHYTHM_NS`. None if workers are born again and
        again (the rhythm is the epochs') or without work (it is noise of the power)."""
        if job.loader.births or (job.idle or 0.0) >= policy.AT_END:
            return None
        if now_ns - self._rhythm_ns >= RHYTHM_NS and job.cuda.calls is None:
            self._rhythm_ns = now_ns
            self._pace = next((pace for track in tracks if (pace := track.rhythm.per_s()) is not None), None)
        return self._pace
