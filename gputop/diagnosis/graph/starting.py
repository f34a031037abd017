"""Words for a trainer's activity before its first step, and fixes."""

from __future__ import annotations

from gputop.diagnosis.facts import feeders
from gputop.diagnosis.facts.life import has_peers
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled
from gputop.findings.verdict import Fix
from gputop.system.text import clean

FIXES = (
    Fix("See why it compiles again: a size or a flag that changes from step to step", "TORCH_LOGS=recompiles", look=True),
    Fix("Compile once for all sizes", "torch.compile(model, dynamic=True)"),
)


def is_compiling(job: WalkedJob) -> bool:
    """True if torch.compile's processes work in this window."""
    return job.cpus.compiling >= policy.TENTH


def compiling_text(job: WalkedJob) -> str:
    """Words for what a compiling trainer does."""
    return filled("compiles, torch.compile's processes run on {:.1f} CPUs", job.cpus.compiling)


def fetches_by_network(job: WalkedJob) -> bool:
    """True if the main thread's waits for the network are for data that it fetches: from a network file system, or as a client, which a
    rank that waits for the others is not."""
    return job.trainer.reads_remotely or (feeders.asks_others(job) and not has_peers(job))


def fetching(job: WalkedJob) -> float:
    """Share of the loss in which the main thread waits for storage, or for the network if it fetches from there."""
    return job.pools.get("main.disk", 0.0) + (job.pools.get("main.network", 0.0) if fetches_by_network(job) else 0.0)


def loading(job: WalkedJob, facts: WalkedFacts) -> str:
    """Words for what a trainer loads before its first step: from where, how fast, how much so far, and what limits it."""
    trainer, disk = job.trainer, job.pools.get("main.disk", 0.0)
    far = not trainer.reads_remotely and job.pools.get("main.network", 0.0) > disk
    rate, read = (facts.host.net_rx_bytes_per_s, None) if far else (trainer.read_bytes_per_s, trainer.newer.read_bytes)
    so_far = "" if rate is None else filled(" ({:.1f} MB/s)", rate / 1e6)
    if rate is not None and read is not None:
        so_far = filled(" ({:.1f} MB/s, {:.2f} GB so far)", rate / 1e6, read / 1e9)
    source = "the network" if far else "storage"
    does = filled("it loads from {}{}, for which it waits {:.0f}% of the time", source, so_far, 100 * fetching(job))
    limit = _limit(job, facts)
    return does if far or not limit else filled("{}; {}", does, limit)


def _limit(job: WalkedJob, facts: WalkedFacts) -> str:
    """Words for what limits reads from a disk; empty if it is not seen."""
    limit, rate = job.limits.read_limit, job.trainer.read_bytes_per_s or 0.0
    if limit is not None and limit.bytes_per_s and rate >= policy.MOST * limit.bytes_per_s:
        return filled("its control group may read {:.1f} MB/s", limit.bytes_per_s / 1e6)
    busy = facts.host.disk_busy
    return filled("{} is busy {:.0f}% of the time", clean(busy[0]), 100 * busy[1]) if busy is not None and busy[1] >= policy.MOST else ""


def activity(job: WalkedJob, facts: WalkedFacts) -> str:
    """Words for what a trainer does before its first step; empty if it is not seen."""
    trainer, inside = job.trainer, job.cuda.calls or job.cuda.sampled
    if is_compiling(job):
        return filled("it {}", compiling_text(job))
    if fetching(job) >= policy.SOME:
        return loading(job, facts)
    if inside is not None and inside.copy >= policy.SOME:
        return filled("it copies to its GPU {:.0f}% of the time", 100 * inside.copy)
    works = max((gpu.util or 0.0 for gpu in job.gpus), default=0.0)
    if (job.cuda.launches_per_s or 0.0) >= policy.ASKS_PER_S:
        if works < policy.LITTLE:
            return filled("it launches {:,.0f} kernels a second while its GPU rests, as for a graph", job.cuda.launches_per_s or 0.0)
        return filled("it warms up, its GPU works {:.0f}% of the time", 100 * works)
    if trainer.run >= policy.HALF:
        return filled("its main thread computes {:.0f}% of the time", 100 * trainer.run)
    if trainer.others_run >= policy.HALF:
        return filled("its threads{} run on {:.1f} CPUs", feeders.named_thread(trainer), trainer.others_run)
    return ""
