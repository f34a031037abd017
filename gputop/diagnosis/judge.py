"""The table: which cause a leaf of the wait-for graph is, by its resource and who holds it."""

from __future__ import annotations

from gputop.diagnosis.causes import Claim, judges
from gputop.diagnosis.edges import Leaf, Way
from gputop.diagnosis.waitgraph import Walk, pool_of

_BY_CAUSE = {one.cause: one for one in judges()}
_RULES = sorted(((one, one.rule) for one in judges() if one.rule is not None), key=lambda pair: pair[1].order)
_ROWS = {Leaf(*row) for one in judges() for row in one.rows}
_TABLE = {leaf: [one for one in judges() if leaf in one.rows] for leaf in _ROWS}


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
            if taken := part * share / total * (left[pool] / whole[pool] if whole[pool] > 0.0 else 0.0):
                found.setdefault(cause, Claim(_BY_CAUSE[cause])).add(pool, taken, Way(leaf, trail))
    walk.job.claims = list(found.values())
    pool = max((one for one in whole if not one.startswith("gpu.")), key=whole.__getitem__, default="")
    walk.job.way = ways.get(pool, Way())


def cause_of(leaf: Leaf, walk: Walk) -> tuple[str, float]:
    """The cause of a leaf, and the part of the leaf that it explains; empty where none does."""
    parts = [(1.0 if one.part is None else one.part(walk, leaf), one.cause) for one in _TABLE.get(leaf, ())]
    part, cause = max(parts, default=(0.0, ""))
    return (cause, part) if part > 0.0 else ("", 0.0)
