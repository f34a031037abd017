"""too-few-workers: the workers run freely all the time and CPUs that more of them could use idle.

Threshold: fewer workers than CPUs the job may use, and `SPARE` of a CPU among these that it does not use; or any that those could use
who get no work: one that has had nothing at all to do for `loading.UNUSED_S`, while its trainer waits, or has ended because its part of
the data is at its end, is no worker. A stream of few shards gives work to so many only.
"""

from __future__ import annotations

from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Finding, Judge
from gputop.diagnosis.facts import Facts, JobFacts, Taker
from gputop.diagnosis.feeders import UNUSED_S, at_work, loading_programs, with_workers
from gputop.diagnosis.model import Evidence, Fix
from gputop.diagnosis.takers import names_of

SPARE, RESERVE = 0.4, 0.2
SPARE_SHARDS = 0.1
"""CPUs that idle, or that it leaves to others though it may use them, less what the trainer itself needs now and then; and those that
its trainer only spins on."""


def _unused(job: JobFacts) -> int:
    """Workers that it has and that get no work."""
    return job.finished + len(job.workers) - len(at_work(job))


def _tell(job: JobFacts, facts: Facts) -> Finding:
    programs = loading_programs(job, facts)
    return _tell_of_programs(job, facts, programs) if programs else _tell_of_workers(job, facts)


def _tell_of_programs(job: JobFacts, facts: Facts, programs: list[Taker]) -> Finding:
    cpus, ran, names = capacity(job, facts), sum(one.cores for one in programs), ", ".join(names_of(programs))
    does = "which loads for it, runs" if len(programs) == 1 else "which load for it, run"
    detail = f"{names}, {does} on {ran:.1f} CPUs, while the job uses {cpus.used:.1f} of the {len(cpus.allowed)} CPUs it may use"
    evidence = (
        Evidence("programs_cpus", round(ran, 2), "CPUs", f"on which {names} ran"),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    fix = Fix("Start more of them side by side, each with a part of the data and a thread that reads it")
    return Finding(detail, evidence, (fix,), (), (job.trainer.pid,))


def _tell_of_workers(job: JobFacts, facts: Facts) -> Finding:
    cpus, busy, spins, unused = capacity(job, facts), at_work(job), job.spun, _unused(job)
    share = 100 * sum(max(worker.run, worker.others_run) for worker in busy) / len(busy)
    workers = len(busy)
    who = "its only worker runs" if workers == 1 else f"all {workers} workers run"
    if unused:
        runs = "runs" if workers == 1 else "run"
        who = f"only {workers} of its {workers + unused} workers got work in the last {UNUSED_S:.0f} s, and {runs}"
    detail = f"{who} {share:.0f}% of the time, while the job uses {cpus.used - spins:.1f} of the {len(cpus.allowed)} CPUs it may use"
    if spins >= SPARE:
        detail += f", and its trainer spins on {spins:.1f} in waits for the GPU"
    evidence = (
        Evidence("worker_cpu_pct", round(share, 1), "%", "on-CPU share of the workers' loading threads"),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    more = min(len(cpus.allowed), workers + max(1, int(cpus.idle_inside)))
    fix = Fix("Start more workers", with_workers(job, more))
    if unused:
        total = workers + unused
        fix = Fix(f"Give each worker as much of the data: a stream needs at least as many shards as the {total} workers, of like size")
    return Finding(detail, evidence, (fix,), (), tuple(worker.pid for worker in busy))


JUDGE = Judge("too-few-workers", "input-bound", _tell, needs="schedstat, /proc/stat")
