"""The rank of a training that the others wait for: one rule over four numbers per rank, for the ranks of one host and of many."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

from gputop.findings import policy
from gputop.model.parallel import PARTS, STAGE, Parallel
from gputop.model.ranges import Share


class RankPace(Struct, frozen=True):
    """One rank's shares of the window (0..1)."""

    idle: Share  # none of its GPUs ran anything
    own_delay: Share  # part of ``idle`` that the rank spent by itself: not blocked on another rank
    used: Share | None = None  # share of its GPUs that its kernels used; None: unknown, or one of its GPUs was not busy all the time
    awaited: Share | None = None
    """Share in which the rank did not sleep on a lock or socket while its GPU idled, as in a collective on the host until the last rank
    arrives. None if the lock may be its own, or its GPU spins in a collective."""


def find_slowest(ranks: Sequence[RankPace]) -> int | None:
    """Index of the rank that the others wait for, or None.

    Either its GPU idles while the others' spin, or the others sleep while it does not; or all are busy, and its GPU is the one that really
    works; or the others' GPUs idle, while they sleep in a collective on the host (gloo), and it works on or sleeps elsewhere.
    """
    if len(ranks) < 2:
        return None
    all_late = all_are_late(ranks)
    own_delay = () if all_late else ((_own_delay,),)
    elsewhere = () if all_late and max(map(_own_delay, ranks)) >= policy.FIFTH else ((_awaited, _elsewhere),)
    for measures in (*own_delay, (_used,), (_awaited, _busy), *elsewhere):
        found = [_far_ahead(ranks, measure) for measure in measures]
        if found[0] is not None and all(one == found[0] for one in found):
            return found[0]
    return None


class SlowPart(Struct, frozen=True):
    """A part of a training that the others wait for, all of whose ranks are late alike: no rank of it is to blame."""

    kind: str  # a word of `gputop.model.parallel.PARTS`
    number: int  # from 0


def find_slow_part(ranks: Sequence[RankPace], numbers: Sequence[int], parallel: Parallel) -> SlowPart | None:
    """The part that has more to do than the others of its kind; None without one. ``numbers``: of the ranks.

    A part of one rank is that rank. Only a stage of one counts, if its GPU works on without a pause: stages differ in what they do, and so
    may be late to several degrees. Of other kinds one part is late, or the kind is another.
    """
    for kind in PARTS:
        members: dict[int, list[RankPace]] = {}
        for rank, number in zip(ranks, numbers, strict=True):
            members.setdefault(parallel.part_of(kind, number), []).append(rank)
        if kind != STAGE and min(map(len, members.values()), default=0) < 2:
            continue
        parts = sorted(members)
        means = [_mean(members[part]) for part in parts]
        at = find_slowest(means)
        if at is None or (kind != STAGE and any(find_slowest((means[at], mean)) != 0 for mean in (*means[:at], *means[at + 1 :]))):
            continue
        slow = members[parts[at]]
        if find_slowest(slow) is None if len(slow) > 1 else slow[0].idle < policy.FIFTH:
            return SlowPart(kind, parts[at])
    return None


def find_late_rank(ranks: Sequence[RankPace], numbers: Sequence[int], parallel: Parallel) -> int | None:
    """Index of the rank that is late in each of its groups, whose ranks have the same work; None without one.

    Ranks of other stages are no measure for it, unless no other rank of its own stage is measured.
    """
    stages: dict[int, list[int]] = {}
    groups: dict[Hashable, list[int]] = {}
    for index, number in enumerate(numbers):
        stages.setdefault(parallel.part_of(STAGE, number), []).append(index)
        for group in parallel.groups_of(number):
            groups.setdefault(group, []).append(index)

    def slowest_of(among: Sequence[int]) -> int | None:
        at = find_slowest([ranks[index] for index in among])
        return None if at is None else among[at]

    found = {slowest_of(members) for members in stages.values()}
    if any(len(members) < 2 for members in stages.values()):
        at = find_slowest(ranks)
        found |= {at} if at is not None and len(stages[parallel.part_of(STAGE, numbers[at])]) < 2 else set()
    late = [
        index for index in found
        if index is not None
        and all(slowest_of(mates) == index for group in parallel.groups_of(numbers[index]) if len(mates := groups[group]) > 1)
    ]  # fmt: skip
    return max(late, key=lambda index: (ranks[index].own_delay, ranks[index].used or 0.0, -index), default=None)


def _mean(ranks: Sequence[RankPace]) -> RankPace:
    def of(name: str) -> float | None:
        values = [getattr(rank, name) for rank in ranks]
        return None if None in values else sum(values) / len(values)

    return RankPace(of("idle") or 0.0, of("own_delay") or 0.0, of("used"), of("awaited"))


def all_are_late(ranks: Sequence[RankPace]) -> bool:
    """True if the last rank's delay hits the others nearly as much: they wait for it only because delays come now to one, now to
    another."""
    delays = sorted(map(_own_delay, ranks))
    return delays[(len(delays) - 1) // 2] > policy.HALF * delays[-1]


def waited_share(rank: RankPace, slowest: RankPace) -> float:
    """Share of the window in which the GPUs of ``rank`` spin until the slowest rank arrives; if all GPUs are busy, by how much less they
    work than the slowest rank's, which never waits."""
    later = slowest.idle - rank.idle
    if later < policy.FIFTH and rank.used is not None and slowest.used:
        later = (1.0 - rank.idle) * (1.0 - rank.used / slowest.used)
    return max(0.0, min(1.0 - rank.idle, later))


def waited_on_wire(busy: Sequence[float], waited: float) -> float:
    """Share of the window, at most ``waited``, in which ranks waited for the wire between them; ``busy``: share in which each rank had data
    on it, the busiest first.

    Where data are on the wire for half of the waits, the rest of these is the exchange, too: one of the next piece, or what is added up.
    """
    if not busy or waited <= 0.0:
        return 0.0
    by_turns = sum(busy[: policy.SEVERAL])  # the other end sends while this one receives
    if busy[0] >= policy.HALF * waited or by_turns >= policy.MOST * waited:
        return waited
    return busy[0] if busy[0] >= policy.FIFTH else 0.0


def _far_ahead(ranks: Sequence[RankPace], measure: Callable[[RankPace], float | None]) -> int | None:
    """Index of the rank that exceeds the median by `policy.FIFTH`; None without one, or with unknown values."""
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


def _elsewhere(rank: RankPace) -> float | None:
    """Share in which its GPU idled and it was not asleep at other ranks, though asleep perhaps: by a timer, at a disk."""
    return None if rank.awaited is None else rank.awaited - _busy(rank)
