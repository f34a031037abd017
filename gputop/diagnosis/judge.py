"""The table: the cause of a leaf of the wait-for graph, by its resource and its holder."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from gputop.diagnosis.causes import Judge, judges, traced
from gputop.diagnosis.graph.edges import Leaf, LeafTrail
from gputop.diagnosis.graph.job import Claim, WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk
from gputop.findings import policy


@cache
def table() -> dict[Leaf, list[Judge]]:
    """Leaf -> judges that claim it. Built with the first judgement: a plug-in may import any of gputop."""
    return {Leaf(*row): [one for one in judges() if row in one.rows] for some in judges() for row in some.rows}


def judge(walk: Walk, job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
    """The job with its ``claims``: each cause with its share of the loss, and the way with most of the share. What no leaf explains may be
    explained by torch's own trace."""
    walk.see(job, facts)
    found, parts = dict[str, Claim](), walk.parts
    total = sum(share for _, share, _ in parts)
    explained = {leaf: _cause_of(leaf, walk) for leaf in walk.leaves}
    rest, open_way = 1.0, (0.0, LeafTrail())
    for _, share, way in parts:
        part, named = explained[way.leaf]
        rest -= part * share / total
        open_way = max(open_way, ((1.0 - part) * share, way), key=lambda row: row[0])
        if named is not None:
            found.setdefault(named.cause, Claim(named.cause)).add(part * share / total, way)
    if rest >= policy.HALF and (by_trace := traced.cause_of(job)) is not None:
        cause, share = by_trace
        found.setdefault(cause, Claim(cause)).add(rest * share, open_way[1])
    return replace(job, claims=list(found.values()))


def _cause_of(leaf: Leaf, walk: Walk) -> tuple[float, Judge | None]:
    """(part of a leaf that a cause explains, that cause's judge); (0.0, None) if no cause does."""
    parts = [(1.0 if one.part is None else one.part(walk, leaf), i, one) for i, one in enumerate(table().get(leaf, ()))]
    part, _, named = max(parts, key=lambda row: row[:2], default=(0.0, 0, None))  # of equal parts a plug-in's wins: it is more specific
    return (part, named) if part > 0.0 else (0.0, None)
