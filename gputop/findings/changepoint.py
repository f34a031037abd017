"""The moment from which a run makes its steps more slowly, with honest intervals of how much and since when. Pure.

Points are looked at: stretches of at least `LEAST_STEPS` steps, so that a count of whole steps is exact enough, with the logarithm of the
mean step. A change is a level that

* lasts until now, for `LASTS_S` at least: a checkpoint or an evaluation ends;
* stands above nearly all points before it: what comes back after a faster evaluation, or after a warm-up, was there before;
* is no slope: lines of one slope on both sides of the moment still leave a jump, as growing sequences do not, also where the moment is at
  an end of its interval;
* is no greater work: where the bytes that a step copies to the GPU grow along, the batch or its sequences did.

Points that are far from their running median are first replaced by it: a checkpoint in each fifth point moves no level. Candidates are the
largest differences of the means of two neighbouring stretches (a moving-sum statistic). A level is told by points of 5 s, over which single
long steps weigh little, and its moment by points of 1 s.

The moment is then looked for around a candidate, by the points as they were: each has its chance at the level before and at that after it,
and a point that is far from both, such as a long step or a part of an evaluation, has the same chance at either, so it moves no moment. A
point with the moment in it lies between the levels. The chances of neighbours that are alike count for less, by the variance of means of
batches. The moment is the median of the probability that this gives to each time. Its interval has 95 % of it, and half a point besides,
for no reading is nearer. What time a run stood still is left out together with the readings around it, in which it stood still for a part
that is not known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from math import ceil, exp, log, pi, sqrt
from operator import attrgetter
from statistics import fmean, median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gputop.findings import intervals
from gputop.findings.intervals import Interval, Level

_EVEN = 0.8  # of the usual length of a point, that each has at least: a faster evaluation makes no more points than its time
LEAST_STEPS, LEAST_POINT_S = 10, 1.0  # steps and seconds of a point: a count of whole steps is within 10 %, and its errors cancel
WARM_UP_S = 30.0  # s of a run's first steps, which compile and choose kernels, and are no level
LASTS_S = 75.0  # s that a new level stands before it is one: longer than most evaluations (a choice)
LEAST_POINTS = 15  # points of such a level
LOOKS_BACK = 4  # such stretches to each side by which the change is measured
LEAST_CHANGE = log(1.04)  # a smaller one is within the work of any other process (guess)
LEAST_UNCOUNTED = log(1.06)  # where no steps are counted: bytes and rhythms have noise of their own (guess)
POINT_S = 5.0  # s over which steps are looked at together to tell a level, and bytes, which come with whole steps (a choice)
LEAST_SURE = log(1.02)  # which the lower end of the interval exceeds, at `SURE_ENOUGH`
SURE_ENOUGH = 0.999  # chance that the interval which decides holds: many moments are looked at, over and over, for a whole run
BEFORE_BELOW, AFTER_ABOVE = 0.85, 0.8  # share of the points before and after that lie on their side of the middle
OWN_SHARE = 0.25  # of the change; if work a step grew by so much of it, the step was given more to do
STEEP = 3.0  # standard errors from which a slope is one
_NEARBY, _LEAST_NEARBY, _NEARBY_S = 41, 9, 164.0  # points of the running median, twice as many as the longest excursion that it removes;
# and at least; and seconds, at most: points of a clock that is seldom read are as long as an evaluation themselves
_FEW = 13  # points of the running median by which a point's side is decided: two long steps in a row move fewer (a choice)
_STANDS, _SEEN_S = 2.0, 1.0  # steps without which a run stands still, and seconds besides, at least, for readings' own times
_FAR, _COUNTED = 4.0, 0.3  # standard deviations that are far; steps, standard deviation of a mean of counts of whole steps
_LEAST_NOISE = 0.005  # standard deviation of a point, at least, as a relative time
_CANDIDATES = 3  # moments that are tried
_LEAST_ASIDE = 5  # points to each side of a moment, at least
_ANYTHING = 0.05  # share of points that are anything: a long step, a part of an evaluation (guess)
_WITHIN = (0.0, 0.25, 0.5, 0.75)  # parts of a point at which a moment may lie
_ROOT = sqrt(2.0 * pi)


class StepCount(NamedTuple):
    """Counters at a moment, cumulative."""

    t_s: float
    steps: float
    work: float | None = None  # bytes copied to the GPU; None: not known


class Point(NamedTuple):
    """A stretch of some steps."""

    start_s: float
    end_s: float
    log_s: float  # logarithm of the mean seconds of a step
    log_work: float | None = None  # logarithm of the mean work of a step
    steps: float = LEAST_STEPS
    inner_s: tuple[float, ...] = ()  # where its parts begin, if the run stood still within it; see `_WITHIN`


class PaceChange(Struct, frozen=True):
    """A run makes its steps more slowly since a moment."""

    since_s: float
    low_s: float  # interval of that moment
    high_s: float
    slower: Interval
    before_s: float  # seconds of a step before, and after
    after_s: float
    after: Level  # of the logarithms after


def points_of(readings: Sequence[StepCount], least_s: float = LEAST_POINT_S) -> list[Point]:
    """Points of about one length in time, ``least_s`` at least, between the means of a few readings each, so that counts of whole steps
    weigh little, and without the times in which the run stood still. A counter that falls has begun again."""
    points = _points(readings, least_s)
    if not points:
        return []
    moving, own = _without_stalls(readings, points)
    points = _points(moving, _EVEN * median(one.end_s - one.start_s for one in points))
    clock = _Clock([one.t_s for one in moving], own)
    return [
        one._replace(start_s=clock.at(one.start_s), end_s=clock.at(one.end_s), inner_s=(*map(clock.at, _parts_s(one)),)) for one in points
    ]


def _parts_s(point: Point) -> tuple[float, ...]:
    """Times at which the parts of a point begin."""
    return point.inner_s or tuple(point.start_s + share * (point.end_s - point.start_s) for share in _WITHIN)


def _points(readings: Sequence[StepCount], least_s: float) -> list[Point]:
    points: list[Point] = []
    slot, before = list[StepCount](), None
    for one in readings:
        if slot and (one.steps < slot[-1].steps or one.t_s < slot[-1].t_s):
            slot, before = [], None
        slot.append(one)
        if one.steps - slot[0].steps < LEAST_STEPS or one.t_s - slot[0].t_s < least_s:
            continue
        now = _mean(slot)
        if before is not None and now.steps > before.steps and now.t_s > before.t_s:
            steps, seconds = now.steps - before.steps, now.t_s - before.t_s
            work = None if now.work is None or before.work is None or now.work <= before.work else log((now.work - before.work) / steps)
            points.append(Point(before.t_s, now.t_s, log(seconds / steps), work, steps))
        slot, before = [one], now
    return points


def _without_stalls(readings: Sequence[StepCount], points: Sequence[Point]) -> tuple[list[StepCount], list[float]]:
    """(the readings without what time the run stands still, as at a checkpoint or an evaluation without steps, from the reading before to
    the one behind, and without the steps between these; their own times). Steps that are as slow as those of the next minute are slow, and
    no stall."""
    smooth, beside = _running_median([one.log_s for one in points], _NEARBY), _NEARBY // 2
    moving, own, i = list[StepCount](), list[float](), 0
    cut = StepCount(0.0, 0.0, 0.0)  # what the stalls so far had of time, steps and work
    seen_s = max(_SEEN_S, 2 * median(b.t_s - a.t_s for a, b in pairwise(readings)))
    for _, group in groupby(readings, key=attrgetter("steps")):
        alike = list(group)
        first, since_s = alike[0], alike[0].t_s
        while i < len(points) - 1 and points[i].end_s < since_s:
            i += 1
        usual_s = exp(max(smooth[max(0, i - beside)], smooth[min(len(points) - 1, i + beside)]))
        if own and since_s - own[-1] > _STANDS * usual_s + seen_s:
            if len(own) > 1:
                del moving[-1], own[-1]
            last = moving[-1]
            work = None if first.work is None or last.work is None else first.work - last.work
            cut = StepCount(since_s - last.t_s, first.steps - last.steps, work)
        if alike[-1].t_s - since_s > _STANDS * usual_s + _SEEN_S:
            alike = alike[:1]
        moving += [_without(one, cut) for one in alike]
        own += [one.t_s for one in alike]
    return moving, own


def _without(one: StepCount, cut: StepCount) -> StepCount:
    """A reading as it would be without what was cut out."""
    work = None if one.work is None or cut.work is None else one.work - cut.work
    return StepCount(one.t_s - cut.t_s, one.steps - cut.steps, work)


class _Clock(NamedTuple):
    """A clock that stops now and then, beside one that runs on."""

    stopping: list[float]
    running: list[float]

    def at(self, t_s: float) -> float:
        """Time of the running clock at a time of the other; the end of a stop."""
        i = min(max(1, bisect_right(self.stopping, t_s)), len(self.stopping) - 1)
        (a, b), (start, end) = self.stopping[i - 1 : i + 1], self.running[i - 1 : i + 1]
        return end if b <= a else start + (end - start) * (t_s - a) / (b - a)


def _mean(slot: Sequence[StepCount]) -> StepCount:
    works = [one.work for one in slot if one.work is not None]
    return StepCount(fmean(one.t_s for one in slot), fmean(one.steps for one in slot), fmean(works) if len(works) == len(slot) else None)


def find_counted(readings: Sequence[StepCount], least: float = LEAST_CHANGE) -> PaceChange | None:
    """The latest lasting slowdown by points of `POINT_S`, over which long steps and short evaluations weigh little; the moment by those of
    `LEAST_POINT_S`, if these tell it more closely."""
    found = find(points_of(readings, POINT_S), least)
    return None if found is None else _nearer(found, points_of(readings))


def find(points: Sequence[Point], least: float = LEAST_CHANGE) -> PaceChange | None:
    """The latest lasting slowdown, of ``least`` or more, of a run whose first point is the first; None if it has none, or none yet."""
    points, width = _warmed_up(points)
    if len(points) < 2 * width:
        return None
    logs = _cleaned(points)
    for k in _candidates(logs, width):
        if (found := _judged(points, logs, _moment(points, logs, k, width), width, least)) is not None:
            return found
    return None


def _warmed_up(points: Sequence[Point]) -> tuple[Sequence[Point], int]:
    """(points behind the warm-up, number of points of a level that lasts)."""
    points = points[bisect_left(points, points[0].start_s + WARM_UP_S, key=attrgetter("start_s")) :] if points else ()
    return points, max(LEAST_POINTS, ceil(LASTS_S / _length_s(points))) if points else LEAST_POINTS


def _length_s(points: Sequence[Point]) -> float:
    return median(one.end_s - one.start_s for one in points)


def _nearer(found: PaceChange, points: Sequence[Point]) -> PaceChange:
    """The change with its moment by shorter points, if that lies within what was found, in a shorter interval."""
    points, width = _warmed_up(points)
    k = bisect_left(points, found.since_s, key=attrgetter("start_s"))
    if min(k, len(points) - k) < width:
        return found
    at = _moment(points, _cleaned(points), k, width)
    if at.high_s - at.low_s >= found.high_s - found.low_s or not found.low_s <= at.since_s <= found.high_s:
        return found
    return replace(found, since_s=at.since_s, low_s=at.low_s, high_s=at.high_s)


def _candidates(logs: Sequence[float], width: int) -> list[int]:
    """The few places with the largest rises from one stretch to the next, each the largest nearby."""
    sums = [0.0, *accumulate(logs)]
    rises = [((sums[k + width] - 2 * sums[k] + sums[k - width]) / width, k) for k in range(width, len(logs) - width + 1)]
    found: list[int] = []
    for rise, k in sorted(rises, reverse=True):
        if rise < LEAST_SURE or len(found) == _CANDIDATES:
            break
        if all(abs(k - one) > width // 2 for one in found):
            found.append(k)
    return found


class _Moment(NamedTuple):
    """A moment, with its interval; ``k``: the point that begins next to it."""

    k: int
    since_s: float
    low_s: float
    high_s: float


def _moment(points: Sequence[Point], logs: Sequence[float], k: int, width: int) -> _Moment:
    """The moment of the rise within ``width`` points of ``k``; see above."""
    start, end, near = max(0, k - width), min(len(logs), k + width), width // 3
    below, above = median(logs[max(0, k - 2 * width) : k - near]), median(logs[k + near : k + 2 * width])
    part, own = points[start:end], [one.log_s for one in points[start:end]]
    rests = [*(one - below for one in own[: k - near - start]), *(one - above for one in own[k + near - start :])]
    noise = max(_LEAST_NOISE, 1.4826 * median(map(abs, rests)))
    errors = [max(noise, _COUNTED / one.steps) for one in part]
    before, after = ([_chance(one, level, error) for one, error in zip(own, errors, strict=True)] for level in (below, above))
    sums = [0.0, *accumulate(one - other for one, other in zip(before, after, strict=True))]  # of a moment behind so many points
    times, likely = list[float](), list[float]()
    for i in range(_LEAST_ASIDE, len(part) - _LEAST_ASIDE):
        for share, t_s in zip(_WITHIN, _parts_s(part[i]), strict=True):
            chance = sums[i - 1]
            for j, after_share in ((i - 1, _after(share + 0.5)), (i, _after(share - 0.5)), (i + 1, _after(share - 1.5))):
                chance += _chance(own[j], below + (above - below) * after_share, errors[j]) - after[j]
            times.append(t_s)
            likely.append(chance)
    weight, aside = _independent(rests, noise), (1.0 - intervals.SURE) / 2
    low_s, since_s, high_s = _quantiles(times, [weight * one for one in likely], [aside, 0.5, 1.0 - aside])
    half_s = median(one.end_s - one.start_s for one in part) / 2
    nearest = min(range(_LEAST_ASIDE, len(part) - _LEAST_ASIDE + 1), key=lambda i: abs(part[i].start_s - since_s))
    return _Moment(start + nearest, since_s, low_s - half_s, high_s + half_s)


def _independent(rests: Sequence[float], noise: float) -> float:
    """Share of independent values among neighbours that are alike, by the spread of means of batches; those that are far left out."""
    lasting = intervals.level([one if abs(one) <= _FAR * noise else 0.0 for one in rests])
    return 1.0 if lasting is None else noise**2 / max(noise**2, lasting.error2 * len(rests))


def _quantiles(times: Sequence[float], likely: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """Times before which the moment is with so much of the probability, of which ``likely`` has the logarithms. Each time stands for the
    time about it."""
    edges = [times[0], *((a + b) / 2 for a, b in pairwise(times)), times[-1]]
    most = max(likely)
    mass = [0.0, *accumulate((b - a) * exp(one - most) for (a, b), one in zip(pairwise(edges), likely, strict=True))]
    found = list[float]()
    for share in wanted:
        i = min(len(times) - 1, max(0, bisect_left(mass, share * mass[-1]) - 1))
        part = (share * mass[-1] - mass[i]) / (mass[i + 1] - mass[i]) if mass[i + 1] > mass[i] else 0.5
        found.append(edges[i] + part * (edges[i + 1] - edges[i]))
    return found


def _after(apart: float) -> float:
    """Share of a point behind a moment, which lies so many of its lengths behind its middle."""
    if abs(apart) >= 1.0:
        return 0.0 if apart > 0.0 else 1.0
    return (1.0 - apart) ** 2 / 2 if apart > 0.0 else 1.0 - (1.0 + apart) ** 2 / 2


def _chance(value: float, level: float, error: float) -> float:
    """Logarithm of the chance of a point at a level; one that is far from it may be anything."""
    return log((1.0 - _ANYTHING) * exp(-(((value - level) / error) ** 2) / 2) / error / _ROOT + _ANYTHING)


def _judged(points: Sequence[Point], logs: Sequence[float], at: _Moment, width: int, least: float) -> PaceChange | None:
    """The change at a place, if it is one by all of the above."""
    k, whole = at.k, logs
    logs = _cleaned_apart(points, whole, k)
    start, end = max(0, k - LOOKS_BACK * width), min(len(logs), k + LOOKS_BACK * width)
    logs = _within_reach(logs, median(logs[start:k]), median(logs[k:end]))
    before, after = intervals.level(logs[start:k]), intervals.level(logs[k:end])
    if before is None or after is None or points[-1].end_s - points[k].start_s < LASTS_S:
        return None
    middle, smooth = (before.mean + after.mean) / 2, _running_median(logs, _FEW)
    is_above = [one > middle for one in smooth]
    if fmean(is_above[:k]) > 1.0 - BEFORE_BELOW or fmean(is_above[k:]) < AFTER_ABOVE or fmean(is_above[-width:]) < AFTER_ABOVE:
        return None
    if min(median(one.log_s for one in points[-width:]), median(whole[-width:])) <= middle:
        return None  # the level has just ended, which the running median takes for an excursion
    jump, error, steepness = _jump(points, logs, k, width)
    ways = [tuple(_around(jump, error, sure) for sure in (SURE_ENOUGH, intervals.SURE))]
    if abs(steepness) <= STEEP:  # else the slope has its part of the difference
        ways.append(tuple(intervals.between(before, after, sure) for sure in (SURE_ENOUGH, intervals.SURE)))
    decides, shown = max(ways, key=lambda way: way[0].low)
    if min(decides.mean, jump) < least or decides.low < LEAST_SURE:
        return None
    ends = [bisect_left(points, t_s, key=lambda one: one.start_s) for t_s in (at.low_s, at.high_s)]
    jumps = [_jump(points, logs, min(max(one, k - width // 2), k + width // 2), width)[0] for one in ends]
    if fmean([jump, *jumps]) < least:
        return None  # the moment was chosen as the one of the largest jump, which chance has a part in
    if _has_more_work(points, k, width, decides.mean):
        return None
    return PaceChange(at.since_s, at.low_s, at.high_s, shown, exp(before.mean), exp(after.mean), after)


def _within_reach(logs: Sequence[float], below: float, above: float) -> list[float]:
    """The logarithms, none further from two levels than these are from one another: a faster evaluation hides no small change."""
    apart = max(LEAST_CHANGE, above - below)
    return [min(max(one, min(below, above) - apart), max(below, above) + apart) for one in logs]


def _around(mean: float, error: float, sure: float) -> Interval:
    return Interval.around(mean, intervals.t_quantile((1.0 + sure) / 2, LEAST_POINTS) * error)


def _jump(points: Sequence[Point], logs: Sequence[float], k: int, width: int) -> tuple[float, float, float]:
    """(jump at a place between two lines of one slope near it, its standard error, the slope in standard errors)."""
    start, end = max(0, k - 2 * width), min(len(logs), k + 2 * width)
    times = [(one.start_s + one.end_s) / 2 for one in points[start:end]]
    cut, values = k - start, logs[start:end]
    sides = [(times[:cut], values[:cut]), (times[cut:], values[cut:])]
    centres = [(fmean(t), fmean(v)) for t, v in sides]
    along = sum((t - centre[0]) ** 2 for (ts, _), centre in zip(sides, centres, strict=True) for t in ts)
    slope = sum(
        (t - centre[0]) * (v - centre[1])
        for (ts, vs), centre in zip(sides, centres, strict=True) for t, v in zip(ts, vs, strict=True)
    ) / along  # fmt: skip
    rests = [v - centre[1] - slope * (t - centre[0]) for (ts, vs), centre in zip(sides, centres, strict=True)
             for t, v in zip(ts, vs, strict=True)]  # fmt: skip
    rest = intervals.level(rests)
    spread2 = max(_LEAST_NOISE**2, 0.0 if rest is None else rest.error2 * len(rests))  # of one point, as if it were independent
    apart = centres[1][0] - centres[0][0]
    jump = centres[1][1] - centres[0][1] - slope * apart
    slope_error = sqrt(spread2 / along)
    return jump, sqrt(spread2 * (1 / cut + 1 / (len(values) - cut)) + (apart * slope_error) ** 2), slope / slope_error


def _has_more_work(points: Sequence[Point], k: int, width: int, change: float) -> bool:
    """True if the work of a step grew by a good part of the change."""
    sides = [[one.log_work for one in part if one.log_work is not None] for part in (points[max(0, k - width) : k], points[k : k + width])]
    return all(sides) and median(sides[1]) - median(sides[0]) >= OWN_SHARE * change


def _cleaned(points: Sequence[Point]) -> list[float]:
    """The logarithms, with the running median in place of those that are far from it."""
    nearby = max(_LEAST_NEARBY, min(_NEARBY, int(_NEARBY_S / _length_s(points)) | 1))
    logs = [one.log_s for one in points]
    smooth = _running_median(logs, nearby)
    noise = max(_LEAST_NOISE, 1.4826 * median(abs(one - near) for one, near in zip(logs, smooth, strict=True)))
    bounds = [_FAR * max(noise, _COUNTED / one.steps) for one in points]
    return [one if abs(one - near) <= bound else near for one, near, bound in zip(logs, smooth, bounds, strict=True)]


def _cleaned_apart(points: Sequence[Point], logs: Sequence[float], k: int) -> list[float]:
    """The cleaned logarithms, those that were replaced by their own side of a moment: a running median across the moment takes what lies
    between the moment and an evaluation for a part of the evaluation."""
    sides = [*_cleaned(points[:k]), *_cleaned(points[k:])]
    return [one if one == point.log_s else own for one, point, own in zip(logs, points, sides, strict=True)]


def _running_median(values: Sequence[float], length: int) -> list[float]:
    """The median of ``length`` values around each; at the ends of the first and the last ones, for an excursion may stand there."""
    window = sorted(values[:length])
    found = [_middle(window)] * (min(length, len(values)) // 2 + 1)
    for old, new in zip(values, values[length:], strict=False):
        del window[bisect_left(window, old)]
        insort(window, new)
        found.append(_middle(window))
    return [*found, *[found[-1]] * (len(values) - len(found))]


def _middle(window: Sequence[float]) -> float:
    half = len(window) // 2
    return window[half] if len(window) % 2 else (window[half - 1] + window[half]) / 2
