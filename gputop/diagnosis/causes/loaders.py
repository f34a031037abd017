"""Work of loaders: which of two causes it is, too-few-workers or slow-transform, and how far."""

from __future__ import annotations

from gputop.diagnosis.causes import advice
from gputop.diagnosis.facts import feeders
from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.kinds import Kind, kind_of
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.facts.takers import names_of
from gputop.diagnosis.facts.waits import PIPE
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Fix

LOADING_THREAD = "main's loading thread"  # holder of work of a native program's threads, see `Walk.thread_of`
LOADERS = tuple(
    ("work", holder)
    for holder in (
        "worker", "worker's thread", "worker's program", "worker's thread's program", "main's thread's program", "main's feeder",
        LOADING_THREAD,
    )
)  # fmt: skip
"""Leaves of work that more workers would share."""


def more_would_help(walk: Walk) -> bool:
    """True if idle CPUs could run more workers; CPUs on which the trainer only spins count as idle."""
    job, cpus = walk.job, capacity(walk.job, walk.facts)
    busy = feeders.at_work(job)
    workers = len(busy) or len(feeders.at_work_for(job, walk.facts)) or feeders.loading_threads(job)
    idle = max(cpus.idle_inside, len(cpus.allowed) - cpus.used - policy.FIFTH) + walk.spun_cpus
    idlers = job.loader.finished + len(job.workers) - len(busy)
    return 0 < workers < len(cpus.allowed) and idle >= (policy.TENTH if idlers else policy.SOME)


def explained(walk: Walk, leaf: Leaf) -> float:
    """Part, 0 to 1, of a leaf that is work: for workers, how busy the busiest one is."""
    job = walk.job
    if not leaf.holder.startswith("worker") or one_is_late(job):
        return 1.0
    busiest = max((_busy(job, worker) for worker in job.workers), default=0.0)
    return min(1.0, max(0.0, (busiest - policy.SOME) / (policy.MOST - policy.SOME)))


def one_is_late(job: WalkedJob) -> bool:
    """True if a torch loader, which keeps the order of its batches, waits for a long one while most workers are ahead."""
    ahead, runs = sum(worker.ahead for worker in job.workers), [worker.run for worker in job.workers]
    late = job.loader.is_torchs and job.data >= policy.LOST and ahead >= policy.HALF * len(runs)
    return late and sum(runs) - min(runs) * len(runs) >= policy.MOST * job.data


def unasked(job: WalkedJob, worker: ProcFacts) -> float:
    """Share of the window that a worker which answers requests, such as an environment, waited at a pipe for the next request."""
    return worker.ahead if not job.loader.is_torchs and worker.kinds.get(PIPE, 0.0) >= policy.NEARLY_ALL * worker.ahead else 0.0


def _busy(job: WalkedJob, worker: ProcFacts) -> float:
    """Share of the time with requests in which the worker, its threads or its programs had something to do."""
    asked = 1.0 - unasked(job, worker)
    return max(worker.run + worker.runnable, sum(worker.others), sum(worker.programs)) / asked if asked > 0.0 else 0.0


def more_programs(job: WalkedJob, facts: WalkedFacts, programs: list[Taker], count: int) -> tuple[Fix, ...]:
    """Fixes that let more processes or threads prepare the input where programs outside the job's own do so now: ``count`` loaders of a
    program that starts them. How many threads a native program has changes nothing about a service."""
    if kind_of(job, facts) is not Kind.NATIVE or feeders.loading_programs(job, facts):
        return advice.fixes(advice.loading(job, facts).more, count)
    names, its = joined(", ", names_of(programs)), "its" if len(programs) == 1 else "their"
    return (Fix(filled("Let {} answer in more threads or processes, by {} own switch", names, its)),)
