"""The table: which cause a leaf of the wait-for graph is, by its resource and who holds it."""

from __future__ import annotations

from gputop.diagnosis import feeders, policy
from gputop.diagnosis.capacity import capacity
from gputop.diagnosis.causes import Claim, judges
from gputop.diagnosis.causes.slow_transform import flat_out
from gputop.diagnosis.edges import Leaf, Way
from gputop.diagnosis.waitgraph import Walk, pool_of

_BY_CAUSE = {judge.cause: judge for judge in judges()}
_RULES = sorted(((judge, judge.rule) for judge in judges() if judge.rule is not None), key=lambda one: one[1].order)
_TABLE = {Leaf(*row): judge.cause for judge in judges() for row in judge.rows}
_LOADERS = ("worker", "worker's thread", "worker's program", "worker's thread's program", "main's thread's program")
"""Holders of work that more workers would share: too-few-workers where CPUs idle, else slow-transform."""


def judge(walk: Walk) -> None:
    """Fill in the job's ``claims``: each cause with its share of the loss, and the way along which most of that came;
    and the job's ``way``."""
    found, left = dict[str, Claim](), walk.pools
    whole, ways = dict(left), walk.ways
    for one, rule in _RULES:
        if any(pool.startswith(rule.pools) for pool in left):
            for pool, part in rule.claim(walk.job, walk.facts).items():
                taken = left.get(pool, 0.0) * part
                if taken > 0.0:
                    left[pool] -= taken
                    found.setdefault(one.cause, Claim(one)).add(pool, taken, ways[pool])
    total = sum(booked.share for booked in walk.leaves.values())
    for leaf, booked in walk.leaves.items():
        cause, part = cause_of(leaf, walk)
        for share, trail in booked.trails.values() if cause else ():
            pool = pool_of(leaf, trail)
            if taken := part * share / total * left[pool] / whole[pool]:
                found.setdefault(cause, Claim(_BY_CAUSE[cause])).add(pool, taken, Way(leaf, trail))
    walk.job.claims = list(found.values())
    pool = max((one for one in whole if not one.startswith("gpu.")), key=whole.__getitem__, default="")
    walk.job.way = ways.get(pool, Way())


def cause_of(leaf: Leaf, walk: Walk) -> tuple[str, float]:
    """The cause of a leaf, and the part of the leaf that it explains; empty where it is not known."""
    if leaf.resource == "work" and leaf.holder in _LOADERS:
        part = flat_out(walk.job) if leaf.holder.startswith("worker") else 1.0
        return ("too-few-workers" if more_would_help(walk) else "slow-transform"), part
    if leaf == ("disk", "main") and not loads_itself(walk):  # it saves a checkpoint, which is no fault
        return "", 0.0
    return _TABLE.get(leaf, ""), policy.OWN_SLEEP if leaf == ("timer", "main") else 1.0


def loads_itself(walk: Walk) -> bool:
    """Whether the trainer that waits for a disk reads from it, or at least does so between steps."""
    trainer = walk.trainer
    reads = (trainer.read_bytes_per_s or 0.0) > (trainer.write_bytes_per_s or 0.0) or "disk" in feeders.programs_wait(walk.job, walk.facts)
    return reads or all(gpu.idle_s < policy.STEPS_S for gpu in walk.job.gpus)


def more_would_help(walk: Walk) -> bool:
    """Whether CPUs idle that more workers could use, those among them on which the trainer only spins."""
    job = walk.job
    cpus, workers = capacity(job, walk.facts), len(feeders.at_work(job)) or len(feeders.loading_programs(job, walk.facts))
    unused = max(cpus.idle_inside, len(cpus.allowed) - cpus.used - policy.RESERVE) + walk.spun_cpus
    idlers = job.finished + len(job.workers) - len(feeders.at_work(job))
    return 0 < workers < len(cpus.allowed) and unused >= (policy.SPARE_SHARDS if idlers else policy.SPARE)
