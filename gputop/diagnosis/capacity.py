"""Which CPUs a job may use, how busy they are, and who uses them."""

from __future__ import annotations

from gputop.diagnosis import cpusets
from gputop.diagnosis.facts import Capacity
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts

IDLE = 0.35
"""A CPU idle for more than this share of the window could have taken more work."""
TAKEN = 0.15
"""Others who take this share of the job's CPUs are worth naming."""


def capacity(job: JobFacts, facts: Facts) -> Capacity:
    """Capacity of the CPUs that the job's workers may use, of the trainer's where it has none. Worked out once per job."""
    if job.capacity is None:
        job.capacity = _capacity(job, facts)
    return job.capacity


def _capacity(job: JobFacts, facts: Facts) -> Capacity:
    busy = facts.host.busy
    host = frozenset(busy) or frozenset(range(facts.host.cpus))
    lists = {proc.info.cpus_allowed for proc in job.workers or [job.trainer] if proc.info.cpus_allowed}
    allowed = frozenset().union(*(cpusets.parse(text) & host for text in lists)) or host
    inside = sum(1.0 - busy[cpu] for cpu in allowed if cpu in busy)
    procs = (job.trainer, *job.workers)
    pinned = len(allowed) < len(host)
    taken = sum(taker.cores for taker in facts.takers if not pinned or taker.cpu is None or taker.cpu in allowed)
    return Capacity(
        allowed, host, inside, sum(1.0 - share for share in busy.values()) - inside, taken,
        sum(proc.cpu_s / proc.seconds for proc in procs),
        facts.behind_strangers_s / facts.behind_s if facts.behind_s > 0.1 * facts.waited_s else None,
    )  # fmt: skip


def wanted(job: JobFacts) -> float:
    """CPUs its threads ran on or were runnable for."""
    return sum(proc.cpu_s / proc.seconds + proc.runnable + proc.others_runnable for proc in (job.trainer, *job.workers))
