"""The diagnosis of a stream: boards in, states, verdict, ledger and incidents out."""

from __future__ import annotations

from gputop.board import Board
from gputop.diagnosis import chain
from gputop.diagnosis import intensity
from gputop.diagnosis import report
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.incidents import Incidents
from gputop.diagnosis.model import Incident
from gputop.diagnosis.model import Ledger
from gputop.diagnosis.model import ProcState
from gputop.diagnosis.model import Verdict
from gputop.diagnosis.symptoms import Standing
from gputop.diagnosis.symptoms import judge_job
from gputop.diagnosis.symptoms import without_job
from gputop.diagnosis.window import Window
from gputop.roles import Role


class Engine:
    """Feed it the board two to five times a second (every half or whole second of a recording); it keeps what it needs."""

    def __init__(self) -> None:
        self.states: dict[int, ProcState] = {}
        self.verdict = Verdict()
        self.ledger = Ledger()
        self.facts: Facts | None = None
        self._window = Window()
        self._incidents = Incidents()
        self._unix_offset_ns = 0

    @property
    def roles(self) -> dict[int, Role]:
        """Who is who on the last board."""
        return self._window.roles

    @property
    def incidents(self) -> list[Incident]:
        """All so far, oldest first; those that last have no end."""
        return self._incidents.all

    def feed(self, board: Board) -> None:
        """Take in the board as it stands. Feeding the same moment twice changes nothing."""
        before = self._window.t_ns
        if not self._window.push(board):
            return
        self._unix_offset_ns = board.header.unix_ns - board.header.t_ns
        seconds = (board.t_ns - before) / 1e9 if self._window.continues else 0.0
        facts = self.facts = self._window.facts(board)
        intensity.set_waste(facts)
        self.states = {proc.pid: proc.state for job in facts.jobs for proc in (job.trainer, *job.workers)}
        standing = [self._judge(job, facts, seconds) for job in facts.jobs]
        standing = _on_gpus(standing)
        self._incidents.note(board, seconds, standing)
        worst = max(standing, key=_weight, default=None)
        self.verdict = worst.verdict if worst is not None else without_job(facts)

    def _judge(self, job: JobFacts, facts: Facts, seconds: float) -> Standing:
        chain.set_pools(job, facts.t_ns)
        standing = judge_job(job, facts)
        known = [gpu for gpu in job.gpus if gpu.util_now is not None]
        waste = sum(job.waste.values())
        lost_s = sum(min(1.0, 1.0 - (gpu.util_now or 0.0) + waste) for gpu in known) * seconds
        if not standing.warming_up:
            self.ledger.add(len(known) * seconds, lost_s, standing.shares)
        standing.lost_s = lost_s if known else None
        return standing

    def explain(self) -> dict[str, object]:
        """What was found over the whole stream, in the shape of DESIGN.md §6; ready for JSON."""
        return report.explanation(self.verdict, self.ledger, self.incidents, self._unix_offset_ns)


def _on_gpus(standing: list[Standing]) -> list[Standing]:
    """Where somebody trains on a GPU, those that do not are no concern of the GPUs."""
    return [one for one in standing if one.job.gpus] or standing


def _weight(one: Standing) -> tuple[bool, float]:
    """A straggler explains its peers' waits, so it comes first; then the job that lost most."""
    return one.cause == "straggler-rank", one.job.lost if one.job.lost is not None else -1.0
