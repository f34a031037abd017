"""too-few-workers: the workers run freely all the time and CPUs that more of them could use idle.

Threshold: fewer workers than CPUs the job may use, and `SPARE` of a CPU among these that it does not use.
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.model import Evidence
from gputop.diagnosis.model import Fix
from gputop.diagnosis.verdicts import Claims
from gputop.diagnosis.verdicts import Finding
from gputop.diagnosis.verdicts import Judge
from gputop.diagnosis.verdicts.slow_transform import flat_out

SPARE, RESERVE = 0.4, 0.2
"""CPUs that idle, or that it leaves to others though it may use them, less what the trainer itself needs now and then."""


def _claim(job: JobFacts, facts: Facts) -> Claims:
    cpus = capacity(job, facts)
    unused = max(cpus.idle_inside, len(cpus.allowed) - cpus.used - RESERVE)
    if not job.workers or len(job.workers) >= len(cpus.allowed) or unused < SPARE:
        return {}
    return {"data.running": flat_out(job)}


def _tell(job: JobFacts, facts: Facts) -> Finding:
    cpus = capacity(job, facts)
    share = 100 * sum(worker.run for worker in job.workers) / len(job.workers)
    workers = len(job.workers)
    who = "its only worker runs" if workers == 1 else f"all {workers} workers run"
    detail = f"{who} {share:.0f}% of the time, while the job uses {cpus.used:.1f} of the {len(cpus.allowed)} CPUs it may use"
    evidence = (
        Evidence("worker_cpu_pct", round(share, 1), "%", "on-CPU share of the workers' loading threads"),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    more = min(len(cpus.allowed), workers + max(1, int(cpus.idle_inside)))
    return Finding(detail, evidence, (Fix("Start more workers", f"DataLoader(..., num_workers={more})"),))


JUDGE = Judge("too-few-workers", "input-bound", 70, ("data.running",), _claim, _tell, needs="schedstat, /proc/stat")
