"""What goes into the wait-for graph comes out of it, looked at while a recording is judged; what no cause explains has a share, too."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from gputop.diagnosis import engine
from gputop.diagnosis.facts.facts import Facts, JobFacts
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.diagnosis.judge import judge as judge_job
from tests.corpus.judging import Outcome, judge
from tests.corpus.runs import load

NEAR, NEAR_OF_TIME = 1e-6, 0.02  # how far sums may be off: of the shares of a loss, and of those of a process's time


@dataclass(slots=True)
class Audit:
    """What the graphs of a recording say, look by look."""

    unbooked: list[float] = field(default_factory=list)  # share of the loss at leaves that no row of the table takes
    faults: list[str] = field(default_factory=list)


def audited(path: Path) -> tuple[list[Outcome], Audit]:
    """What is said of each mode of a kept run, as `tests.corpus.judging.judge_file` does it, and what its graphs say."""
    run, audit = load(path), Audit()

    def judged(walk: Walk, job: JobFacts, facts: Facts) -> JobFacts:
        job = judge_job(walk, job, facts)
        if job.idle is not None:
            found = sum(booked.share for booked in walk.leaves.values())
            lost = job.idle + sum(job.gpu_use.waste.values()) + job.gpu_use.turns
            if not abs(found - lost) <= NEAR:
                audit.faults.append(f"{path.stem}: leaves hold {found}, and {lost} is lost")
            if job.idle >= 0.2 and run.label.symptom != "idle":  # an idle job loses nothing to a cause
                audit.unbooked.append(1.0 - sum(claim.share for claim in job.claims))
        for proc in (walk.trainer, *job.workers):
            spent = sum(edge.share for edge in walk.edges[proc.pid])
            if not abs(spent - 1.0) <= NEAR_OF_TIME:
                audit.faults.append(f"{path.stem}: {proc.pid} spent {spent} of its time")
        return job

    with mock.patch.object(engine, "judge", judged):
        return [judge(run, mode) for mode in run.streams], audit
