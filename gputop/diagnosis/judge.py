"""The table: the cause of a leaf of the wait-for graph, by its resource and its holder."""

from __future__ import annotations

from functools import cache

from msgspec.structs import replace

from gputop.diagnosis.causes import Judge, judges
from gputop.diagnosis.graph.edges import Leaf
from gputop.diagnosis.graph.job import Claim, WalkedFacts, WalkedJob
from gputop.diagnosis.graph.waitgraph import Walk


@cache
def table() -> dict[Leaf, list[Judge]]:
    """Leaf -> judges that claim it. Built with the first judgement: a plug-in may import any of gputop."""
    return {Leaf(*row): [one for one in judges() if row in one.rows] for some in judges() for row in some.rows}


def judge(walk: Walk, job: WalkedJob, facts: WalkedFacts) -> WalkedJob:
    """The job with its ``claims``: each cause with its share of the loss, and the way with most of the share."""
    walk.see(job, facts)
    found, parts = dict[str, Claim](), walk.parts
    total = sum(share for _, share, _ in parts)
    explained = {leaf: _cause_of(leaf, walk) for leaf in walk.leaves}
    for _, share, way in parts:
        part, named = explained[way.leaf]
        if named is not None:
            found.setdefault(named.cause, Claim(named.cause)).add(part * share / total, way)
    return replace(job, claims=list(found.values()))


def _cause_of(leaf: Leaf, walk: Walk) -> tuple[float, Judge | None]:
    """(part of a leaf that a cause explains, that cause's judge); (0.0, None) if no cause does."""
    parts = [(1.0 if one.part is None else one.part(walk, leaf), i, one) for i, one in enumerate(table().get(leaf, ()))]
    part, _, named = max(parts, key=lambda row: row[:2], default=(0.0, 0, None))  # of equal parts a plug-in's wins: it is more specific
    return (part, named) if part > 0.0 else (0.0, None)
