"""Who loads for a job beside its workers: threads of the trainer, and programs that it or its workers started."""

from __future__ import annotations

from collections import Counter

from gputop.diagnosis import waits
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import Taker
from gputop.diagnosis.proc import TURN
from gputop.diagnosis.proc import ProcFacts

AT_WORK = 0.25
"""CPUs from which one of these is at work."""
WOKEN = 0.15
"""Share of the window that the trainer must have slept until they woke it."""
OFTEN = 0.25
"""Share of the samples in which threads or programs must be met at the disk or the network to be late for these."""


def threads_at_work(job: JobFacts) -> bool:
    """The trainer's own: they load where there are no workers, and launch the backward pass anywhere."""
    return job.trainer.others_run >= AT_WORK


def threads_wait(proc: ProcFacts) -> dict[str, float]:
    """``disk`` and ``network`` -> share of the samples in which its own threads, for which its main thread waits, were met there."""
    met = proc.threads_met
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK]}, sum(met.values()) - met[waits.LOCK] - met[TURN])


def programs_wait(job: JobFacts, facts: Facts) -> dict[str, float]:
    """The same of the programs that its loaders started, where these do not compute: what they poll is the network."""
    met: Counter[str] = Counter() if programs_at_work(job, facts) else job.programs_met
    shells = met[waits.CHILD]  # whose own programs are told
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + met[waits.POLL]}, sum(met.values()) - shells)


def met_at(job: JobFacts, facts: Facts, kind: str) -> tuple[str, float] | None:
    """Whom of these a job waits for, and in which share of the samples they were met at the ``disk`` or the ``network``."""
    for proc in job.workers or [job.trainer]:
        share = threads_wait(proc).get(kind)
        if share is not None:
            return f"loading threads of {proc.role.label} ({proc.pid})", share
    share = programs_wait(job, facts).get(kind)
    return None if share is None else ("programs that it reads from", share)


def elsewhere(job: JobFacts, facts: Facts) -> list[Taker]:
    """Busy processes that are neither workers nor programs of the trainer, such as actors, but wake it with what it waits for (probe)."""
    own = {taker.pid for taker in started(job, facts)}
    found = [taker for taker in facts.takers if taker.pid not in own and job.woken_by.get(taker.pid, 0.0) > 0.01]
    waited = sum(job.woken_by[taker.pid] for taker in found)
    return found if waited >= WOKEN and sum(taker.cores for taker in found) >= AT_WORK else []


def by_itself(job: JobFacts, kind: str) -> list[ProcFacts]:
    """The trainer, where it waits for the ``disk`` or the ``network`` rather than its workers do; none otherwise."""
    own, workers = (job.pools.get(f"{who}.{kind}", 0.0) for who in ("main", "data"))
    return [job.trainer] if own > workers or not job.workers else []


def loaders(procs: list[ProcFacts]) -> str:
    """Their number; one that is a trainer by name."""
    return f"{len(procs)} loaders" if procs[0].role.kind == "worker" else f"the main thread of {procs[0].role.label} ({procs[0].pid})"


def _late_for(met: dict[str, int], samples: int) -> dict[str, float]:
    often = sum(met.values()) >= OFTEN * samples > 0.0
    return {kind: count / samples for kind, count in met.items() if count} if often else {}


def programs_at_work(job: JobFacts, facts: Facts) -> bool:
    """Programs that still run, or short ones whose time their parents inherit; of a job with workers only what these started."""
    parents = job.workers or [job.trainer]
    ended = sum(min(1.0, parent.children) for parent in parents) if not job.births else 0.0  # workers that ended are no programs
    running = 0.0 if job.workers else sum(taker.cores for taker in started(job, facts))
    return job.helpers + ended + running >= AT_WORK


def started(job: JobFacts, facts: Facts) -> list[Taker]:
    """The trainer's own programs that run now, the busiest first; those of workers are helpers."""
    return [taker for taker in facts.takers if taker.info is not None and taker.info.ppid == job.trainer.pid]
