"""main-thread-preprocessing: the trainer itself loads, mixes or measures between its steps.

Costs: the thread that should launch the next kernels is busy, or sleeps, and the GPU has no work.
Seen: rows work x main, work x its threads and programs it starts; timer x main, counted `policy.HALF` (a blocking wait for the GPU may
sleep by a timer, too); child and pipe x main.
Abstains: threads take turns at one GIL (gil-contention); it launches many short kernels (small-kernels) or waits for the GPU again and
again (sync-storm). Without probes a wait that spins looks like computing: the verdict then has that doubt (`facts.may_spin`).
"""

from __future__ import annotations

from typing import NamedTuple

from gputop.diagnosis.causes import Finding, Judge, advice, percent
from gputop.diagnosis.causes.output_blocked import lists_ends
from gputop.diagnosis.facts.feeders import named_thread, started, threads_at_work
from gputop.diagnosis.facts.life import may_spin
from gputop.diagnosis.graph import starting
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.diagnosis.graph.states import host_side_loss
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Fix
from gputop.model.roles import PIN_THREAD
from gputop.system.text import counted

_SLEEPS = ("timer", "lock", "pipe", "poll")
_ROWS = (("work", "main"), ("timer", "main"), ("work", "main's program"), ("work", "main's thread"), ("child", "main"), ("pipe", "main"))


class _MainThreadWork(NamedTuple):
    """Words and fixes for what the main thread does in most of the lost time."""

    does: str
    asleep: str  # words of evidence for its sleep; empty if it computes
    look: Fix
    fixes: tuple[Fix, ...]


def _part(_walk: Walk, leaf: Leaf) -> float:
    return policy.HALF if leaf.resource == "timer" else 1.0


def _most(job: WalkedJob) -> tuple[str, float]:
    """(``computing`` or the kind of sleep with most of the loss, its share of the window)."""
    loss = job.lost if job.lost is not None else host_side_loss(job)
    costs = {kind: job.pools.get(f"main.{kind}", 0.0) * loss for kind in ("computing", *_SLEEPS)}
    most = max(costs, key=costs.__getitem__)
    return most, costs[most]


def asks_programs(job: WalkedJob) -> bool:
    """True if a trainer with workers also starts programs between the steps and reads their output: nvidia-smi, git, du."""
    return bool(job.workers) and not job.loader.births and job.trainer.children >= policy.AT_WORK


def _finding(job: WalkedJob, facts: WalkedFacts) -> _MainThreadWork:
    most, cost = _most(job)
    pid, share = job.trainer.pid, filled("{:.0f}% of the time", 100 * cost)
    stacks = filled("gputop stacks {:pid} --duration 10", pid)
    where = Fix("See where it waits", filled("gputop stacks {:pid}", pid), look=True)
    if most in ("lock", "poll") and threads_at_work(job):
        does = filled("waits {} for its own threads{}, which run on {:.1f} CPUs", share, named_thread(job.trainer), job.trainer.others_run)
        pins = job.trainer.busiest_thread == PIN_THREAD
        fixes = advice.fixes(advice.loading(job, facts).unpinned) if pins else _loading(job, facts)
        return _MainThreadWork(
            does, "until threads of its own are through", Fix("See what its threads do, by line", stacks, look=True), fixes
        )
    if most in ("pipe", "poll") and asks_programs(job):
        seldom = "Start no program for each step: ask seldom, in a thread, or a library (NVML rather than nvidia-smi)"
        does = filled("waits {} for short programs that it starts, which run on {:.1f} CPUs", share, job.trainer.children)
        return _MainThreadWork(does, "for programs that it starts", where, (Fix(seldom),))
    if not job.workers and most in ("pipe", "poll"):
        return _of_fed(job, facts, share, where)
    if most == "timer":
        sleep = Fix("Take out what sleeps between the steps (time.sleep, a retry, a poll), or wait for the event itself")
        fixes = (sleep,) if job.workers else (sleep, *_loading(job, facts))
        return _MainThreadWork(
            filled("sleeps by itself {}", share), "by a timer", Fix("See where it sleeps, by line", stacks, look=True), fixes
        )
    computes = filled("computes {:.0f}% of the time between steps", 100 * job.trainer.state.fractions.get("computing", 0.0))
    return _MainThreadWork(computes, "", Fix("See what it computes between the steps, by line", stacks, look=True), _loading(job, facts))


def _of_fed(job: WalkedJob, facts: WalkedFacts, share: str, where: Fix) -> _MainThreadWork:
    """Words and fixes for a trainer without workers that another process feeds through a pipe or UNIX socket."""
    does, feeder = filled("waits {} for what comes through a pipe or UNIX socket", share), next(iter(started(job, facts)), None)
    late = Fix("Its feeder is late: see which process is at the other end", lists_ends(job.trainer), look=True)
    fixes = (late, *advice.fixes(advice.loading(job, facts).cheaper))
    if feeder is not None:
        does += filled(", while {} ({}), which it started, runs on {:.1f} CPUs", feeder.name, feeder.pid, feeder.cores)
        fixes = _loading(job, facts)
    return _MainThreadWork(does, "for what comes by a pipe or UNIX socket", where, fixes)


def _loading(job: WalkedJob, facts: WalkedFacts) -> tuple[Fix, ...]:
    ways = advice.loading(job, facts)
    return advice.fixes(ways.moved if job.workers else ways.ahead, advice.first_loaders(job, facts))


def _tell(job: WalkedJob, facts: WalkedFacts) -> Finding:
    told, compiles = _finding(job, facts), starting.is_compiling(job)
    does, fixes = (starting.compiling_text(job), starting.FIXES) if compiles else (told.does, told.fixes)
    ahead = sum(worker.ahead for worker in job.workers) / len(job.workers) if job.workers else None
    workers = filled("its {} {}", counted(len(job.workers), "worker"), "is" if len(job.workers) == 1 else "are")
    alone = "it has no workers" if advice.loading(job, facts).has_workers else "nothing else prepares its input"
    beside = alone if ahead is None else filled("{} ahead {:.0f}% of the time", workers, 100 * ahead)
    asleep = "main_sleeps_pct" if told.asleep == "by a timer" else "main_waits_pct"
    evidence = (
        percent(asleep, _most(job)[1], filled("of the main thread's time asleep {}", told.asleep)) if told.asleep
        else percent("main_cpu_pct", job.trainer.run, "on-CPU share of the trainer's main thread"),
        percent("workers_ahead_pct", ahead, "of the workers' time with nothing to do"),
    )  # fmt: skip
    detail, fixes = filled("the trainer's main thread {}; {}", does, beside), (told.look, *fixes)
    if may_spin(job):
        detail += ". It may also launch small kernels, or spin in waits for the GPU: from /proc all look the same"
        fixes = (
            Fix("Tell them apart: as root, launches and waits for the GPU (.item(), .cpu()) are counted", "sudo gputop", look=True),
            *fixes,
        )
    return Finding(detail, evidence, fixes, (), (job.trainer.pid,))


JUDGE = Judge("main-thread-preprocessing", "input-bound", _tell, rows=_ROWS, part=_part)
