"""slow-transform: the workers run freely, on all CPUs, and their own work takes the time.

Costs: a batch needs more CPU time, or sleep, than the GPU needs for it.
Seen: rows work x worker, its thread or a program that loads, without idle CPUs for more workers (too-few-workers); timer, pipe and child x
worker: it sleeps of its own accord, or for a program that it started; timer x main's program: a program that the trainer started and reads
from does; work x main's source: the one program at the other end of the main thread's pipe works all the time; work x feeder and pipe x
process: a process outside the job loads. Work x worker is also a main thread's wait for a CPU on which workers run that do not crowd one
another. A worker's work counts by the part (busiest - `policy.SOME`) / (`policy.MOST` - `policy.SOME`). In a loader that keeps the order of
batches one long batch delays all (`loaders.one_is_late`).
Abstains: the workers idle between their batches, or wait for CPUs, a lock, a disk or the network; what feeds the job has a pace of its own
(`facts.paced`).
"""

from __future__ import annotations

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.causes.loaders import LOADERS, LOADING_THREAD, explained, more_programs, more_would_help, one_is_late, unasked
from gputop.diagnosis.facts.capacity import capacity
from gputop.diagnosis.facts.facts import Taker
from gputop.diagnosis.facts.feeders import at_work, at_work_for, loading_threads, named_thread, programs_read, programs_sleep
from gputop.diagnosis.facts.takers import names_of
from gputop.diagnosis.facts.waits import LOCK
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Fix
from gputop.system.text import clean, counted

MOST_NAMED = 3  # programs that are named

_FOR_PROGRAMS = ("child", "pipe", "poll")
_ROWS = (("timer", "worker"), ("pipe", "worker"), ("child", "worker"), ("work", "worker's feeder"), ("pipe", "process"),
         ("timer", "main's program"), ("work", "main's source"))  # fmt: skip


def _part(walk: Walk, leaf: Leaf) -> float:
    if leaf not in LOADERS:
        return 1.0
    return 0.0 if more_would_help(walk) else explained(walk, leaf)


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    if feeders := at_work_for(job, facts):
        return _tell_of_feeders(job, facts, feeders)
    if not job.workers:
        return _tell_of_threads(job, facts) if _by_threads(job) else _tell_of_programs(job, facts)
    return _tell_of_late(job, facts) if one_is_late(job) else _tell_of_workers(job, facts)


def _tell_of_feeders(job: WalkedJob, facts: WalkedFacts, feeders: list[Taker]) -> Finding:
    waited = job.feeders.share or programs_read(job) * job.trainer.kinds.get(LOCK, 0.0) or _held(job)
    names = joined(", ", names_of(feeders))
    detail = filled(
        "{} waits {:.0f}% of the time for {}, which {} on {:.1f} CPUs and cannot keep up",
        job.trainer.role.label, 100 * waited, names, "runs" if len(feeders) == 1 else "run", sum(one.cores for one in feeders),
    )  # fmt: skip
    evidence = percent("waited_pct", waited, filled("of its time the trainer slept until {}, or their client, woke it", names))
    more = more_programs(job, facts, feeders, len(feeders) + 1) if advice.room(job, facts) else ()
    return Finding(detail, (evidence,), (*more, *_fixes(job, facts, feeders[0].pid)), (), (job.trainer.pid,))


def _by_threads(job: WalkedJob) -> bool:
    """True if the walk ended at threads of the trainer that load for its main thread."""
    return any(claim.cause == JUDGE.cause and claim.way is not None and claim.way.leaf.holder == LOADING_THREAD for claim in job.claims)


def _tell_of_threads(job: WalkedJob, facts: WalkedFacts) -> Finding:
    trainer, threads = job.trainer, loading_threads(job)
    detail = filled(
        "the main thread of {} waits for {} of its own{}, which run on {:.1f} of the {} CPUs that it may use and cannot keep up",
        trainer.role.label, counted(threads, "thread"), named_thread(trainer), trainer.others_run, len(capacity(job, facts).allowed),
    )  # fmt: skip
    evidence = percent("threads_cpu_pct", trainer.others_run / max(1, threads), "on-CPU share of those threads, in the mean")
    return Finding(detail, (evidence,), _fixes(job, facts, trainer.pid), (), (trainer.pid,))


def _tell_of_programs(job: WalkedJob, facts: WalkedFacts) -> Finding:
    """The finding about a trainer without workers, fed by programs that do not compute."""
    waited, slept = _held(job), programs_sleep(job, facts)
    named = [filled("{} ({})", clean(name), pid) for pid, name in sorted(job.programs.names.items())[:MOST_NAMED]]
    names, feed = joined(", ", named) or "others", "feeds" if len(named) == 1 else "feed"
    detail = filled("the trainer waits {:.0f}% of the time for {}, which {} it", 100 * waited, names, feed)
    evidence = [percent("waited_pct", waited, "of its time the trainer slept for what they write")]
    pids = sorted(job.programs.names)[:MOST_NAMED] or [job.trainer.pid]
    ways, fixes = advice.loading(job, facts), [Fix("See what they wait for", filled("gputop stacks {:pids}", pids), look=True)]
    if slept >= policy.HALF:
        detail = joined("", (detail, ": a timer (time.sleep, a rate limit, a retry) takes their time"))
        evidence.append(percent("program_timer_pct", slept, "of the samples met them asleep by their own will"))
        fixes += advice.fixes(ways.asleep, 2 * len(pids))
    else:
        fixes += advice.fixes(ways.cheaper)
    return Finding(detail, tuple(evidence), tuple(fixes), (), (job.trainer.pid,))


def _held(job: WalkedJob) -> float:
    """Share of the window that this cause explains."""
    held: float = sum(claim.share for claim in job.claims if claim.cause == JUDGE.cause)
    return held * (job.lost if job.lost is not None else host_side_loss(job))


def _tell_of_late(job: WalkedJob, facts: WalkedFacts) -> Finding:
    ahead = sum(worker.ahead for worker in job.workers) / len(job.workers)
    most, least = (chosen(worker.run for worker in job.workers) for chosen in (max, min))
    detail = filled(
        "now and then a batch takes long: its {} are ahead {:.0f}% of the time, and ", counted(len(job.workers), "worker"), 100 * ahead
    )
    detail += filled("all wait for the one that is not; the busiest ran {:.0f}% of the time, the idlest {:.0f}%", 100 * most, 100 * least)
    evidence = (
        percent("ahead_pct", ahead, "of the workers' time with nothing to do"),
        percent("busiest_cpu_pct", most, "on-CPU share of the busiest of them"),
    )
    fixes = (
        *advice.fixes(advice.loading(job, facts).in_order),
        Fix(
            "See which samples take long", filled("gputop stacks {:pids} --duration 10", [worker.pid for worker in job.workers]), look=True
        ),
    )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


def _tell_of_workers(job: WalkedJob, facts: WalkedFacts) -> Finding:
    busy = at_work(job) or job.workers
    workers, asked = max(1, len(busy)), sum(unasked(job, worker) for worker in busy)
    ran = sum(worker.run for worker in busy) / max(workers - asked, 1e-9)
    slept = sum(worker.state.waits.get("timer", 0.0) for worker in busy) / workers
    waited = (sum(worker.state.waits.get(kind, 0.0) for kind in _FOR_PROGRAMS for worker in busy) - asked) / workers
    threads = sum(worker.others_run for worker in busy) / workers
    most = max(ran, slept, waited, threads)
    its = "its" if workers == 1 else "their"
    how, takes = filled("on a CPU {:.0f}% of the time{}", 100 * ran, " that it asks them" if asked else ""), "the work itself is too slow"
    if waited > max(ran, slept):
        how, takes = filled("{:.0f}% of the time waiting for programs of {} own", 100 * waited, its), "the programs are too slow"
    elif slept == most > 0.0:
        how = filled("asleep by {} own will {:.0f}% of the time", its, 100 * slept)
        takes = "a timer (time.sleep, a rate limit, a retry) takes the time"
    elif threads > policy.FIFTH * ran:
        how = filled("with threads of {} own on {:.1f} CPUs", its, workers * (threads + ran))
    who = "its only worker" if workers == 1 else filled("its {}", counted(workers, "worker"))
    evidence = (
        percent("worker_cpu_pct", ran, "on-CPU share of the workers' loading threads"),
        percent("worker_timer_pct", slept if slept > ran else None, "of their time they slept by their own will"),
        percent("worker_programs_pct", waited if waited > ran else None, "of their time they waited for programs that they started"),
    )
    pid = max(busy, key=lambda worker: worker.run).pid if busy else job.trainer.pid
    fixes = _wake(job, facts, workers, pid) if slept == most > 0.0 else _fixes(job, facts, pid)
    detail = filled("{}, {} ({}), cannot keep up: {}", who, how, counted(len(capacity(job, facts).allowed), "CPU"), takes)
    return Finding(detail, evidence, fixes, (), tuple(worker.pid for worker in busy))


def _fixes(job: WalkedJob, facts: WalkedFacts, pid: int) -> tuple[Fix, ...]:
    look = Fix("See what takes the time, by line", filled("gputop stacks {:pid} --duration 10", pid), look=True)
    return (*advice.fixes(advice.loading(job, facts).cheaper), look)


def _wake(job: WalkedJob, facts: WalkedFacts, workers: int, pid: int) -> tuple[Fix, ...]:
    return (
        *advice.fixes(advice.loading(job, facts).asleep, 2 * workers),
        Fix("See where they sleep, by line", filled("gputop stacks {:pid} --duration 10", pid), look=True),
        Fix("Wait for the event itself rather than for a time; of a store that allows so much only, keep what it gave on this host"),
    )


JUDGE = Judge("slow-transform", "input-bound", _tell, rows=(*LOADERS, *_ROWS), part=_part)
