"""Which CPUs a job may use, how busy they are, and who uses them."""

from __future__ import annotations

from dataclasses import dataclass

from gputop.diagnosis import cpusets
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts

IDLE = 0.35
"""A CPU idle for more than this share of the window could have taken more work."""
TAKEN = 0.15
"""Others who take this share of the job's CPUs are worth naming."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """CPUs as the job sees them."""

    allowed: frozenset[int]
    """CPUs all its victims may run on."""
    host: frozenset[int]
    idle_inside: float
    """Idle CPUs among the allowed, summed shares."""
    idle_outside: float
    taken: float
    """CPUs taken by processes outside the job."""
    wanted: float
    """CPUs the job's processes ran on or wanted."""
    preempted_by_others: float | None
    """Of the time its threads waited behind another, the share behind strangers (probe)."""

    @property
    def pinned(self) -> bool:
        return len(self.allowed) < len(self.host)


def capacity(job: JobFacts, facts: Facts) -> Capacity:
    """Capacity of the CPUs that the job's workers may use, of the trainer's where it has none."""
    procs = job.workers or [job.trainer]
    host = frozenset(facts.host.busy) or frozenset(range(facts.host.cpus))
    lists = [cpusets.parse(proc.info.cpus_allowed) & host for proc in procs if proc.info.cpus_allowed]
    allowed = frozenset().union(*lists) if lists else host
    idle = {cpu: 1.0 - busy for cpu, busy in facts.host.busy.items()}
    own = [proc for other in facts.jobs for proc in (other.trainer, *other.workers)]
    wanted = sum(sum(proc.threads_run) + proc.runnable for proc in (job.trainer, *job.workers))
    strangers = sum(taker.preempted_s for taker in facts.takers)
    return Capacity(
        allowed or host, host, sum(share for cpu, share in idle.items() if cpu in allowed),
        sum(share for cpu, share in idle.items() if cpu not in allowed), sum(taker.cores for taker in facts.takers), wanted,
        _share(strangers, sum(proc.runnable * proc.seconds for proc in own)) if facts.probed else None,
    )  # fmt: skip


def _share(part: float, whole: float) -> float | None:
    return min(1.0, part / whole) if whole > 0.0 else None
