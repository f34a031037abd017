"""Rate of a quantity that grows steadily, and how sure that is; over the last 24 s to 13 h, in 2 KB.

The *floor* of a stretch of time is the least reading in it: buffers that come and go leave it where it is, what is never given back lifts
it. Stretches of L = 3 s x 2^k, k = 0 … 11, are kept, at each length the last 8 floors f0 … f7, and the highest floor of the 64 before.
A quantity grows steadily over 8 stretches if

* each floor is above the one before;
* no step is more than `policy.HALF` of f7 - f0: an allocator takes a piece now and then, a leak takes one again and again;
* at least `policy.HALF` of f7 - f0 lies above the highest floor before f0: what fills and empties in each epoch does not grow;
* the last two stretches, by the floors of shorter ones, still grow at `policy.QUARTER` of the rate.

rate = median of the 28 slopes (fj - fi) / (j - i) L (Theil-Sen). Its band of 90 % are the 7th and the 22nd of the sorted slopes (Sen 1968,
by Kendall's tau of 8 values). What slows down by a factor q from the first three steps (sum A) to the last three (sum C = q A, four steps
later) still grows by C r / (1 - r) with r = q^(3/4), three steps' decline: `Steady.to_come`. A standard error is added to C and taken from
A: of two floors, by the steps' changes, each of which has the errors of four (1, -2, 1). Where q is then 1 or more, growth has no end.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf, sqrt
from statistics import median
from typing import NamedTuple

from gputop.findings import policy

STRETCH_NS = 3_000_000_000  # ns, the shortest stretch: memory is read every 1.5 s
SCALES = 12  # lengths of stretches, each twice the one before; the longest is 1.7 h
FLOORS = 8  # kept at each length: seven rises in a row are chance once in 40,000 times (8!)
REMEMBERED = 64  # stretches for which the highest floor is known, at least: an epoch eight times as long as what is looked at
MOST_MISSED = 64  # shortest stretches without a reading, after which a trend begins again: three minutes (guess)
_LOW, _HIGH = 6, 21  # of 28 sorted slopes, the ends of the band of 90 %: (28 -+ 1.645 sqrt(8 x 7 x 21 / 18)) / 2, outwards
_MAD = 1.4826  # standard deviations in a median absolute deviation of normal errors


class Steady(NamedTuple):
    """Steady growth: units of the quantity, and seconds."""

    per_s: float
    low_per_s: float  # the band of 90 %
    high_per_s: float
    grown: float  # over `seconds`
    seconds: float
    to_come: float  # how much it will still grow if it goes on slowing down; inf where it does not


class Trend:
    """The growth of one quantity. Feed it each reading, in order; `steady` is updated every three seconds."""

    __slots__ = ("_count", "_floors", "_least", "_stretch", "_tops", "steady")

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.steady: Steady | None = None  # the growth over the longest time; None if the quantity does not grow
        self._floors: list[list[float]] = [[] for _ in range(SCALES)]
        self._tops = [(-inf, -inf)] * SCALES  # highest floor before those kept: of this round of `REMEMBERED` stretches, of the last
        self._count = self._stretch = 0
        self._least: float | None = None

    def add(self, value: float, t_ns: int) -> None:
        """Add a reading; it holds until the next one."""
        stretch = t_ns // STRETCH_NS
        missed = stretch - self._stretch
        if self._least is not None and not missed:
            self._least = min(self._least, value)
            return
        if self._least is None or not 0 < missed <= MOST_MISSED:
            self.restart()
        else:
            for _ in range(missed):
                self._close(self._least)
            self.steady = next((found for k in reversed(range(SCALES)) if (found := self._grows(k)) is not None), None)
        self._stretch, self._least = stretch, value

    def _close(self, floor: float) -> None:
        self._count += 1
        for k, floors in enumerate(self._floors):
            if len(floors) == FLOORS:
                now, before = self._tops[k] if (self._count >> k) % REMEMBERED else (-inf, self._tops[k][0])
                self._tops[k] = max(now, floors.pop(0)), before
            floors.append(floor)
            if self._count % (2 << k):
                return
            floor = min(floors[-2:])

    def _grows(self, k: int) -> Steady | None:
        floors, length_s = self._floors[k], (STRETCH_NS << k) / 1e9
        if len(floors) < FLOORS or floors[-1] <= floors[0]:
            return None
        steps, grown = [after - before for before, after in pairwise(floors)], floors[-1] - floors[0]
        if min(steps) <= 0.0 or max(steps) > policy.HALF * grown or floors[-1] - max(self._tops[k]) < policy.HALF * grown:
            return None
        slopes = sorted((floors[j] - floors[i]) / (j - i) for j in range(FLOORS) for i in range(j))
        per_stretch, shorter = median(slopes), max(0, k - 2)
        late = self._floors[shorter]
        if late[-1] - late[0] < policy.QUARTER * per_stretch * (FLOORS - 1) / (1 << (k - shorter)):
            return None
        low, per_s, high = (slope / length_s for slope in (slopes[_LOW], per_stretch, slopes[_HIGH]))
        return Steady(per_s, low, high, grown, length_s * (FLOORS - 1), _to_come(steps))


def _to_come(steps: list[float]) -> float:
    """Further growth if it goes on slowing down; inf if it does not slow down. See the module's text."""
    changes = [after - before for before, after in pairwise(steps)]
    error = sqrt(2 / 6) * _MAD * median(abs(change - median(changes)) for change in changes)
    early, late = sum(steps[:3]) - error, sum(steps[-3:]) + error
    if late >= early:
        return inf
    declined = float((late / early) ** 0.75)
    return late * declined / (1.0 - declined)
