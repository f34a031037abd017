"""Who loads for a job beside its workers: threads of the trainer, and programs that it or its workers started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gputop.diagnosis import waits
from gputop.diagnosis.facts import Facts
from gputop.diagnosis.facts import JobFacts
from gputop.diagnosis.facts import Taker
from gputop.diagnosis.proc import ASKING
from gputop.diagnosis.proc import TURN
from gputop.diagnosis.proc import ProcFacts
from gputop.text import counted

LISTENING, CONNECTED = "listening", "connected"
"""Words of `ProcInfo.sockets`."""
SERVING = 0.5
"""Share of the window in which who can be asked must wait for that."""
AT_WORK = 0.25
"""CPUs from which one of these is at work."""
WOKEN = 0.15
"""Share of the window that the trainer must have slept until they woke it."""
OFTEN = 0.25
"""Share of the samples in which threads or programs must be met at the disk or the network to be late for these."""


def threads_at_work(job: JobFacts) -> bool:
    """The trainer's own: they load where there are no workers, and launch the backward pass anywhere."""
    return job.trainer.others_run >= AT_WORK


def threads_wait(job: JobFacts, proc: ProcFacts) -> dict[str, float]:
    """``disk`` and ``network`` -> share of the samples in which its own threads, for which its main thread waits, were met there.

    Threads of a trainer that has loaders, or peers, poll for others than the loader.
    """
    met = proc.threads_met
    asking = 0 if proc is job.trainer and (job.workers or job.kin) else met[ASKING]
    samples = sum(met.values()) - met[waits.LOCK] - met[TURN] - met[ASKING] + asking
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + asking}, samples)


def programs_wait(job: JobFacts, facts: Facts) -> dict[str, float]:
    """The same of the programs that its loaders started, where these do not compute: what they poll is the network."""
    met: Counter[str] = Counter() if programs_at_work(job, facts) else job.programs_met
    shells = met[waits.CHILD]  # whose own programs are told
    return _late_for({waits.DISK: met[waits.DISK], waits.NETWORK: met[waits.NETWORK] + met[waits.POLL]}, sum(met.values()) - shells)


def who_waits(job: JobFacts, facts: Facts, kind: str, share: Callable[[ProcFacts], float]) -> tuple[list[ProcFacts], str, float]:
    """Who waits for the ``disk`` or the ``network``: processes, in words, and for which part of the time (of the samples, where it is
    threads or programs that were met there). ``share`` tells how long a process's main thread did.

    The workers; where it rather is the trainer itself between its steps, or where there are none, that one.
    """
    own, owed = (job.pools.get(f"{who}.{kind}", 0.0) for who in ("main", "data"))
    if job.workers and own > owed:
        return [job.trainer], f"the main thread of {job.trainer.role.label} ({job.trainer.pid})", share(job.trainer)
    procs = job.workers or [job.trainer]
    for proc in procs:
        if kind in threads_wait(job, proc):
            return procs, f"loading threads of {proc.role.label} ({proc.pid})", threads_wait(job, proc)[kind]
    programs = programs_wait(job, facts)
    if kind in programs:
        return procs, "programs that it reads from", programs[kind]
    name = counted(len(procs), "loader") if job.workers else f"the main thread of {job.trainer.role.label} ({job.trainer.pid})"
    return procs, name, sum(map(share, procs)) / len(procs)


def elsewhere(job: JobFacts, facts: Facts) -> list[Taker]:
    """Busy processes that are neither workers nor programs of the trainer, such as actors, but wake it with what it waits for (probe)."""
    own = {taker.pid for taker in started(job, facts)}
    found = [taker for taker in facts.takers if taker.pid not in own and job.woken_by.get(taker.pid, 0.0) > 0.01]
    waited = sum(job.woken_by[taker.pid] for taker in found)
    return found if waited >= WOKEN and sum(taker.cores for taker in found) >= AT_WORK else []


def _late_for(met: dict[str, int], samples: int) -> dict[str, float]:
    often = sum(met.values()) >= OFTEN * samples > 0.0
    return {kind: count / samples for kind, count in met.items() if count} if often else {}


def programs_at_work(job: JobFacts, facts: Facts) -> bool:
    """Programs that still run, or short ones whose time their parents inherit; of a job with workers only what these started."""
    parents = job.workers or [job.trainer]
    ended = sum(min(1.0, parent.children) for parent in parents) if not job.births else 0.0  # workers that ended are no programs
    running = 0.0 if job.workers else sum(taker.cores for taker in started(job, facts))
    return job.helpers + ended + running >= AT_WORK


def asks_others(job: JobFacts) -> bool:
    """Its event loop waits for whom it asked over the network: it has connections, and nobody can ask it."""
    return job.trainer.info.sockets == CONNECTED


def serves(job: JobFacts) -> bool:
    """It can be asked and mostly waits for that. What its threads wait for, other than its programs, is its clients' business."""
    return not job.workers and job.trainer.info.sockets == LISTENING and job.trainer.kinds.get(waits.POLL, 0.0) >= SERVING


def started(job: JobFacts, facts: Facts) -> list[Taker]:
    """The trainer's own programs that run now, the busiest first; those of workers are helpers."""
    return [taker for taker in facts.takers if taker.info is not None and taker.info.ppid == job.trainer.pid]
