"""Who loads for a job beside its workers: threads of the trainer, and programs that it or its workers started."""

from __future__ import annotations

from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import Taker

AT_WORK = 0.25
"""CPUs from which one of these is at work."""


def threads_at_work(job: JobFacts) -> bool:
    """The trainer's own: they load where there are no workers, and launch the backward pass anywhere."""
    return job.trainer.others_run >= AT_WORK


def programs_at_work(job: JobFacts, facts: Facts) -> bool:
    """Programs that still run, or short ones whose time their parents inherit; of a job with workers only what these started."""
    parents = job.workers or [job.trainer]
    ended = sum(min(1.0, parent.children) for parent in parents) if not job.births else 0.0  # workers that ended are no programs
    running = 0.0 if job.workers else sum(taker.cores for taker in started(job, facts))
    return job.helpers + ended + running >= AT_WORK


def started(job: JobFacts, facts: Facts) -> list[Taker]:
    """The trainer's own programs that run now, the busiest first; those of workers are helpers."""
    return [taker for taker in facts.takers if taker.info is not None and taker.info.ppid == job.trainer.pid]
