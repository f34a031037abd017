"""Intervals of a relative change: between two sides of measurements that depend on their neighbours, and of a run beside earlier ones.

Measurements are logarithms of times, so that a difference is a relative change. Neighbours in time are alike, so a side counts as fewer
independent values: the means of batches of about the square root of its length, and of these, by the correlation of each with the next (r),
n (1 - r) / (1 + r). The interval of two sides is Welch's; that of several runs on each stands on what runs differ by; that of a run beside
n earlier ones has their spread times sqrt(1 + 1/n), as a prediction of one more run has.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import atan, cos, exp, pi, sin, sqrt
from statistics import fmean
from typing import TypeVar

from msgspec import Struct

SURE = 0.95  # chance that an interval holds the true value; the usual one
LEAST_RUNS = 3  # runs whose spread is known: of two, one degree of freedom gives an interval that no change passes
USUAL_RUNS = 4  # degrees of freedom as which the usual spread between runs counts beside the measured one (guess)
RUN_SPREAD = 0.01  # relative standard deviation between runs of one job, at least: three may agree by chance (guess)
_LEAST_BATCHES = 4  # of one side: the spread of fewer is hardly known
_MOST_ALIKE = 0.95  # correlation of neighbours that is reckoned with at most


AnyInterval = TypeVar("AnyInterval", bound="Interval")


def pct_of(ratio_log: float) -> float:
    """Per cent of change of a logarithm of a ratio."""
    return 100.0 * (exp(ratio_log) - 1.0)


class Interval(Struct, frozen=True):
    """A relative change, as logarithms of a ratio of times or paces: its estimate and its interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def around(cls: type[AnyInterval], mean: float, half: float) -> AnyInterval:
        """The interval of ``half`` to each side of an estimate."""
        return cls(mean, mean - half, mean + half)

    @property
    def pct(self) -> float:
        """The estimate in per cent: 18 where 1.18 times as long."""
        return pct_of(self.mean)

    @property
    def low_pct(self) -> float:
        return pct_of(self.low)

    @property
    def high_pct(self) -> float:
        return pct_of(self.high)

    def as_text(self) -> str:
        """``15 to 21 %``."""
        return f"{self.low_pct:.0f} to {self.high_pct:.0f} %"


class Level(Struct, frozen=True):
    """The mean of one side, the square of its standard error, and the degrees of freedom of that."""

    mean: float
    error2: float
    freedom: float


def level(values: Sequence[float]) -> Level | None:
    """The level of measurements in order of time; None of too few to know their spread."""
    length = max(1, int(sqrt(len(values)) / 1.5))
    batches = [fmean(values[i : i + length]) for i in range(len(values) % length, len(values), length)]
    if len(batches) < _LEAST_BATCHES:
        return None
    mean = fmean(batches)
    spread2 = sum((one - mean) ** 2 for one in batches) / (len(batches) - 1)
    alike = correlation(batches)
    independent = len(batches) * (1.0 - alike) / (1.0 + alike)
    return Level(fmean(values), spread2 / independent, max(1.0, independent - 1.0))


def correlation(values: Sequence[float]) -> float:
    """Correlation of each value with the next, from 0 (alternating values, too) to `_MOST_ALIKE`."""
    mean = fmean(values)
    power = sum((one - mean) ** 2 for one in values)
    if power <= 0.0:
        return 0.0
    return min(_MOST_ALIKE, max(0.0, sum((a - mean) * (b - mean) for a, b in pairwise(values)) / power))


def between(before: Level, after: Level, sure: float = SURE) -> Interval:
    """The change from one side to the other, by Welch's interval."""
    error2 = before.error2 + after.error2
    parts = sum(one.error2**2 / one.freedom for one in (before, after))
    mean = after.mean - before.mean
    half = t_quantile((1.0 + sure) / 2, max(1.0, error2**2 / parts)) * sqrt(error2) if parts > 0.0 else sqrt(error2)
    return Interval.around(mean, half)


def between_runs(before: Sequence[Level], after: Sequence[Level], sure: float = SURE) -> Interval:
    """The change from some runs to others, at least one a side.

    Each side's spread between runs is held together with the usual one, `RUN_SPREAD`, of which each side has one half of the
    `USUAL_RUNS` degrees of freedom, and with that within them: one run a side gets a wide interval rather than none, and with each further
    run their own spread counts for more. The interval is Welch's, for noisy runs on one side say nothing of the other's.
    """
    return between(_of_runs(before), _of_runs(after), sure)


def _of_runs(runs: Sequence[Level]) -> Level:
    """The level of several runs of one side."""
    mean, freedom = fmean(one.mean for one in runs), USUAL_RUNS / 2 + len(runs) - 1
    usual = RUN_SPREAD**2 + fmean(one.error2 for one in runs)
    spread2 = (USUAL_RUNS / 2 * usual + sum((one.mean - mean) ** 2 for one in runs)) / freedom
    return Level(mean, spread2 / len(runs), freedom)


def beside(run: Level, past: Sequence[float], sure: float = SURE) -> Interval | None:
    """The change of a run from earlier ones, each by its mean; None from fewer than `LEAST_RUNS`."""
    if len(past) < LEAST_RUNS:
        return None
    mean = fmean(past)
    spread2 = max(RUN_SPREAD**2, sum((one - mean) ** 2 for one in past) / (len(past) - 1))
    return between(Level(mean, spread2 * (1.0 + 1.0 / len(past)), len(past) - 1), run, sure)


def t_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t, 0.5 < ``probability`` < 1; between whole degrees of freedom, in proportion to their reciprocals."""
    fewer = int(freedom)
    if fewer == freedom:
        return _whole_quantile(probability, fewer)
    part = (1 / fewer - 1 / freedom) * fewer * (fewer + 1)
    return (1.0 - part) * _whole_quantile(probability, fewer) + part * _whole_quantile(probability, fewer + 1)


def _whole_quantile(probability: float, freedom: int) -> float:
    """The quantile for a whole number of degrees of freedom, by bisection of the distribution."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + _central(middle, freedom) / 2 < probability else (low, middle)
    return high


def _central(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total, step = 0.0, 1 + odd
    while step <= freedom - 1:
        total += term
        term *= cos(angle) ** 2 * step / (step + 1)
        step += 2
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
