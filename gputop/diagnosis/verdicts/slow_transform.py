"""slow-transform: the workers run freely, on all CPUs there are, and their own work is what takes the time.

It gets the running that nothing else explains, and the time workers sleep by themselves or wait for a program they started.
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.feeders import programs_at_work
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge

LAZY, BUSY = 0.3, 0.65
"""A worker on or waiting for a CPU less than the former share of the time has time left, from the latter on it has none."""


_FOR_PROGRAMS = ("child", "pipe", "poll")
_POOLS = ("data.running", "data.timer", "data.child", "data.pipe", "data.poll")


def _claim(job: JobFacts, facts: Facts) -> Claims:
    programs = 1.0 if programs_at_work(job, facts) else 0.0
    return {"data.running": flat_out(job), "data.timer": 1.0, "data.child": 1.0, "data.pipe": programs, "data.poll": programs}


def flat_out(job: JobFacts) -> float:
    """How far its busiest worker is from idling, 0..1: who cannot keep up does not sleep, but for its own threads to be done."""
    busiest = max((max(worker.run + worker.runnable, sum(worker.others)) for worker in job.workers), default=0.0)
    return min(1.0, max(0.0, (busiest - LAZY) / (BUSY - LAZY)))


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus = capacity(job, facts)
    workers = max(1, len(job.workers))
    share = 100 * sum(worker.run for worker in job.workers) / workers
    slept = 100 * sum(worker.state.waits.get("timer", 0.0) for worker in job.workers) / workers
    waited = 100 * sum(sum(worker.state.waits.get(kind, 0.0) for kind in _FOR_PROGRAMS) for worker in job.workers) / workers
    own = f"run {share:.0f}% of the time" if share >= slept else f"sleep by themselves {slept:.0f}% of the time"
    detail = f"{len(job.workers)} workers {own} on {len(cpus.allowed)} CPUs and cannot keep up: their own work is too slow"
    if waited > max(share, slept):
        detail = f"{len(job.workers)} workers wait {waited:.0f}% of the time for programs that they start, which cannot keep up"
    evidence = (Evidence("worker_cpu_pct", round(share, 1), "%", "on-CPU share of the workers' loading threads"),)
    pid = max(job.workers, key=lambda worker: worker.run).pid if job.workers else job.trainer.pid
    fixes = (
        Fix("See which transform it is", f"gputop stacks {pid}"),
        Fix(
            "Make it cheaper: decode to the size needed, do it once and store it, or move it to the GPU (DALI, torchvision v2)"
        ),
    )
    return Finding(detail, evidence, fixes, (), tuple(worker.pid for worker in job.workers))


JUDGE = Judge("slow-transform", "input-bound", 75, _POOLS, _claim, _tell, needs="schedstat")
