"""too-few-workers: the workers work all the time, and CPUs idle that more workers could use.

Costs: a batch takes a worker so long that this number delivers fewer than the GPU could compute.
Seen: rows work x worker, its thread, or a program or feeder outside that loads, where `policy.SOME` of a CPU idles among the job's (a CPU
on which its trainer only spins idles, too), and it has fewer workers than CPUs. A worker without work, at the end of its part of the data,
does not count: then `policy.TENTH` of a CPU suffices.
Abstains: CPUs are full (slow-transform), or even the busiest worker idles (`policy.SOME`).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.causes.loaders import LOADERS, explained, more_programs, more_would_help
from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.feeders import at_work, at_work_for, loading_threads, named_thread
from gputop.diagnosis.facts.takers import names_of
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence
from gputop.system.text import counted


def _part(walk: Walk, leaf: Leaf) -> float:
    return explained(walk, leaf) if more_would_help(walk) else 0.0


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if programs := at_work_for(job, facts):
        return _tell_of_programs(job, facts, programs)
    return _tell_of_workers(job, facts) if job.workers else _tell_of_threads(job, facts)


def _tell_of_threads(job: WalkedJob, facts: WalkedFacts) -> Finding:
    """The finding about threads of a native program that load for its main thread."""
    cpus, trainer, threads = capacity(job, facts), job.trainer, max(1, loading_threads(job))
    detail = filled(
        "{} of {}{} load for its main thread, on {:.1f} CPUs, while the job uses {:.1f} of the {} CPUs it may use",
        counted(threads, "thread"), trainer.role.label, named_thread(trainer), trainer.others_run, cpus.used, len(cpus.allowed),
    )  # fmt: skip
    evidence = (
        percent("threads_cpu_pct", trainer.others_run / threads, "on-CPU share of those threads, in the mean"),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    fixes = advice.fixes(advice.loading(job, facts).more, min(len(cpus.allowed), threads + max(1, int(cpus.idle_inside))))
    return Finding(detail, evidence, fixes, (), (trainer.pid,))


def _tell_of_programs(job: WalkedJob, facts: WalkedFacts, programs: list[Taker]) -> Finding:
    cpus, ran, names = capacity(job, facts), sum(one.cores for one in programs), joined(", ", names_of(programs))
    does = "which loads for it, runs" if len(programs) == 1 else "which load for it, run"
    detail = filled(
        "{}, {} on {:.1f} CPUs, while the job uses {:.1f} of the {} CPUs it may use", names, does, ran, cpus.used, len(cpus.allowed)
    )
    evidence = (
        Evidence("programs_cpus", round(ran, 2), "CPUs", filled("on which {} ran", names)),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    more = max(1, min(len(programs), int(cpus.idle_inside)))
    fixes = more_programs(job, facts, programs, len(programs) + more)
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _tell_of_workers(job: WalkedJob, facts: WalkedFacts) -> Finding:
    cpus, busy = capacity(job, facts), at_work(job)
    workers, unused = len(busy), job.loader.finished + len(job.workers) - len(busy)
    share = sum(max(worker.run, worker.others_run) for worker in busy) / workers
    who = "its only worker runs" if workers == 1 else filled("all {} workers run", workers)
    if unused:
        runs = "runs" if workers == 1 else "run"
        who = filled("only {} of its {} workers got work in the last {:.0f} s, and {}", workers, workers + unused, policy.STUCK_S, runs)
    used = filled("the job uses {:.1f} of the {} CPUs it may use", cpus.used - job.spun, len(cpus.allowed))
    spins = filled(", and its trainer spins on {:.1f} in waits for the GPU", job.spun) if job.spun >= policy.SOME else ""
    evidence = (
        percent("worker_cpu_pct", share, "on-CPU share of the workers' loading threads"),
        Evidence("idle_cpus", round(cpus.idle_inside, 2), "CPUs", "idle among those it may use"),
    )
    more = min(len(cpus.allowed), workers + max(1, int(cpus.idle_inside)))
    ways = advice.loading(job, facts)
    fixes = advice.fixes(ways.shards, workers + unused) if unused else advice.fixes(ways.more, more)
    victims = tuple(worker.pid for worker in busy)
    return Finding(filled("{} {:.0f}% of the time, while {}{}", who, 100 * share, used, spins), evidence, fixes, (), victims)


JUDGE = Judge("too-few-workers", "input-bound", _tell, rows=LOADERS, part=_part)
