"""The table: which cause a leaf of the wait-for graph is, by its resource and who holds it."""

from __future__ import annotations

from msgspec.structs import replace

from gputop.diagnosis.causes import Claim, Judge, judges
from gputop.diagnosis.edges import Leaf, Way
from gputop.diagnosis.measure.facts import Facts, JobFacts
from gputop.diagnosis.waitgraph import Walk

_RULES = sorted(((one, one.rule) for one in judges() if one.rule is not None), key=lambda pair: pair[1].order)
_TABLE = {Leaf(*row): [one for one in judges() if row in one.rows] for some in judges() for row in some.rows}


def judge(walk: Walk, job: JobFacts, facts: Facts) -> JobFacts:
    """The job with its ``claims``: each cause with its share of the loss, and the way along which most of that came."""
    walk.see(job, facts)
    found, parts = dict[str, Claim](), walk.parts
    total = sum(share for _, share, _ in parts)
    whole, ways = dict[str, float](), dict[str, tuple[float, Way]]()
    for pool, share, way in parts:
        if way.leaf not in walk.priced:
            whole[pool] = whole.get(pool, 0.0) + share / total
            ways[pool] = max(ways.get(pool, (0.0, way)), (share, way), key=lambda one: one[0])
    left = dict(whole)
    for one, rule in _RULES:
        if any(pool.startswith(rule.pools) for pool in left):
            for pool, part in rule.claim(job, facts).items():
                taken = left.get(pool, 0.0) * part
                if taken > 0.0:
                    left[pool] -= taken
                    found.setdefault(one.cause, Claim(one)).add(taken, ways[pool][1])
    explained = {leaf: _cause_of(leaf, walk) for leaf in walk.leaves}
    for pool, share, way in parts:
        part, named = explained[way.leaf]
        unclaimed = left[pool] / whole[pool] if way.leaf not in walk.priced else 1.0
        if named is not None and (taken := part * share / total * unclaimed):
            found.setdefault(named.cause, Claim(named)).add(taken, way)
    return replace(job, claims=list(found.values()))


def _cause_of(leaf: Leaf, walk: Walk) -> tuple[float, Judge | None]:
    """The part of a leaf that a cause explains, and that cause; None where none does."""
    parts = [(1.0 if one.part is None else one.part(walk, leaf), one.cause, one) for one in _TABLE.get(leaf, ())]
    part, _, named = max(parts, key=lambda row: row[:2], default=(0.0, "", None))
    return (part, named) if part > 0.0 else (0.0, None)
