"""Decides when all is steady, so that jobs need not be judged at every feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gputop.diagnosis.symptoms import Standing
from gputop.findings import policy
from gputop.findings.verdict import IDLE, TRAINING

Shares = Mapping[tuple[str, int], tuple[float, ...]]
Parties = Mapping[int, object]
_LASTING = (TRAINING, IDLE)  # phases that end by a change; the others end by the time that passes as well


class _Stretch(Struct):
    """Observations of one stretch of `SWINGS_NS`: each job's findings, and the bounds of each share."""

    findings: set[tuple[int, str, str, str]] = field(default_factory=set)  # pid of a trainer, symptom, cause, phase
    lows: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    highs: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def add(self, findings: set[tuple[int, str, str, str]], shares: Shares) -> None:
        """Widen the bounds to the present shares."""
        self.findings |= findings
        for key, values in shares.items():
            self.lows[key] = tuple(map(min, values, self.lows.get(key, values)))
            self.highs[key] = tuple(map(max, values, self.highs.get(key, values)))


class Settled:
    """Remembers the activity of all jobs and their findings over the last 10 to 20 s.

    Work follows change: without a new finding for `SETTLED_NS`, jobs are judged again when a share leaves its bounds, else every
    `SELDOM_NS`. A job that swings between two findings has both.
    """

    def __init__(self) -> None:
        self._since_ns = self._judged_ns = self._turned_ns = 0
        self._latest, self._earlier = _Stretch(), _Stretch()
        self._parties: Parties = {}

    def note(self, t_ns: int, parties: Parties, shares: Shares, standing: Sequence[Standing], *, awaits: bool) -> None:
        """Take in a judgement: `Window.parties` and `Window.shares` that were judged, and each job's standing. ``awaits``: whether
        something depends on the time that passes, so that each feed counts, as for a phase that ends by time and a job that may hang."""
        if t_ns - self._turned_ns >= policy.SWINGS_NS:
            self._latest, self._earlier, self._turned_ns = _Stretch(), self._latest, t_ns
        findings = {(one.job.trainer.pid, one.symptom, one.cause, one.phase.word) for one in standing}
        if awaits or parties != self._parties or findings - self._latest.findings - self._earlier.findings or any(map(_awaits, standing)):
            self._since_ns = t_ns
        self._latest.add(findings, shares)
        self._judged_ns, self._parties = t_ns, parties

    def rests(self, t_ns: int, parties: Parties, shares: Shares) -> bool:
        """True if the last judgement still holds: no new finding for long, and each share within its bounds."""
        if t_ns - self._since_ns < policy.SETTLED_NS or t_ns - self._judged_ns >= policy.SELDOM_NS or parties != self._parties:
            return False
        lows, highs, latest = self._earlier.lows, self._earlier.highs, self._latest
        return shares.keys() == latest.lows.keys() and all(
            min(low, least) - policy.MOVES < value < max(high, most) + policy.MOVES
            for key, values in shares.items()
            for value, low, high, least, most in zip(
                values, latest.lows[key], latest.highs[key], lows.get(key, values), highs.get(key, values), strict=True
            )
        )


def _awaits(one: Standing) -> bool:
    return one.phase.word not in _LASTING or (one.phase.word == TRAINING and 0.0 < one.job.life.still_s < policy.FAR_S)
