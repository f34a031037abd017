"""The interval of a gain that was measured in pairs, and how sure it is after several looks."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

from gputop.findings.intervals import Interval, t_quantile

FALSE_POSITIVE = 0.05  # chance of *proved* without a gain, over all looks of a trial; the usual bound
FIRST_LOOK = 0.5  # part of that chance that the first look may use: most gains are clear there, and each pair takes six seconds (a choice)
LEAST_PAIRS = 3  # pairs before the first look: two leave one degree of freedom, and no noise passes its t of 12
LEAST_GAIN = 0.05  # relative gain from which a cause is one; less is within the work of any other process (guess)


class Estimate(Interval, frozen=True):
    """The gain over all pairs."""

    @property
    def proved(self) -> bool:
        """More than `LEAST_GAIN` comes back."""
        return self.low >= log(1.0 + LEAST_GAIN)

    @property
    def disproved(self) -> bool:
        """Less than that comes back."""
        return self.high < log(1.0 + LEAST_GAIN)


def estimate(logs: Sequence[float], looks: Sequence[int], metrics: int = 1) -> Estimate:
    """The interval of the mean of ``logs``, at least two, where ``looks`` are made, after so many pairs each, at so many ``metrics``.

    These share `FALSE_POSITIVE` (Bonferroni): the chance of a false *proved* keeps that bound whenever the trial stops.
    """
    mean = sum(logs) / len(logs)
    spread = sqrt(sum((one - mean) ** 2 for one in logs) / (len(logs) - 1) / len(logs))
    half = t_quantile(1.0 - FALSE_POSITIVE * part_of(len(logs), looks) / metrics, len(logs) - 1) * spread
    return Estimate.around(mean, half)


def part_of(pairs: int, looks: Sequence[int]) -> float:
    """The part of `FALSE_POSITIVE` that the look after so many pairs may use."""
    later = len(looks) - 1
    if not later:
        return 1.0
    return FIRST_LOOK if pairs <= looks[0] else (1.0 - FIRST_LOOK) / later
