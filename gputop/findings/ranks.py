"""Which rank of a training the others wait for: one rule over four numbers per rank, the same for the ranks of one host and of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gputop.findings import policy
from gputop.model.ranges import Share


class RankPace(Struct, frozen=True):
    """What a rank did in the window, as shares of it (0..1)."""

    idle: Share  # none of its GPUs ran anything
    own_delay: Share  # of that, what the rank spent by itself: not blocked on another rank
    used: Share | None = None  # how much of its GPUs its kernels used; None: not known, or one of its GPUs was not busy all the time
    awaited: Share | None = None
    """In which it did not sleep on a lock or socket beside an idle GPU, as in a collective of the host until the last rank arrives; None
    where that may be a lock of its own, or its GPU spins in a collective."""


def find_slowest(ranks: Sequence[RankPace]) -> int | None:
    """The index of the rank that the others wait for; None where there is none.

    Its GPU idles while theirs spin, or they sleep while it does not; or all are busy, and it is the one whose GPU really works; or
    theirs idle and it works on, while they sleep in a collective of the host (gloo).
    """
    if len(ranks) < 2:
        return None
    own_delay = () if all_are_late(ranks) else ((_own_delay,),)
    for measures in (*own_delay, (_used,), (_awaited, _busy)):
        found = [_far_ahead(ranks, measure) for measure in measures]
        if found[0] is not None and all(one == found[0] for one in found):
            return found[0]
    return None


def all_are_late(ranks: Sequence[RankPace]) -> bool:
    """What keeps the last one keeps the others nearly as long: they wait for it only because that hits now one, now another."""
    delays = sorted(map(_own_delay, ranks))
    return delays[(len(delays) - 1) // 2] > policy.HALF * delays[-1]


def waited_share(rank: RankPace, slowest: RankPace) -> float:
    """Share of the window in which the GPUs of ``rank`` spin until the slowest rank arrives; where all GPUs are busy, by how much less they
    work than the slowest one's, which never waits."""
    later = slowest.idle - rank.idle
    if later < policy.FIFTH and rank.used is not None and slowest.used:
        later = (1.0 - rank.idle) * (1.0 - rank.used / slowest.used)
    return max(0.0, min(1.0 - rank.idle, later))


def _far_ahead(ranks: Sequence[RankPace], measure: Callable[[RankPace], float | None]) -> int | None:
    """The one with by `policy.FIFTH` more of it than the median."""
    values = [measure(rank) for rank in ranks]
    known = sorted(value for value in values if value is not None)
    if len(known) == len(ranks) and known[-1] - known[(len(known) - 1) // 2] >= policy.FIFTH:
        return values.index(known[-1])
    return None


def _own_delay(rank: RankPace) -> float:
    return rank.own_delay


def _used(rank: RankPace) -> float | None:
    return rank.used


def _awaited(rank: RankPace) -> float | None:
    return rank.awaited


def _busy(rank: RankPace) -> float:
    return 1.0 - rank.idle
