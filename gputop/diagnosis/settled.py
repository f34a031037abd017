"""Decides when all is steady, so that jobs need not be judged at every feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct, field

from gputop.diagnosis.symptoms import Standing
from gputop.findings import policy
from gputop.findings.verdict import IDLE, TRAINING

Shares = Mapping[tuple[str, int], tuple[float, ...]]
Parties = Mapping[tuple[str, int], object]
_LASTING = (TRAINING, IDLE)  # phases that end by a change; the others end by the time that passes as well
_STILL_S = (policy.STUCK_S, policy.NAPPED_S, policy.HUNG_S, policy.FAR_S)
"""Seconds without a sign of life at which something else may be found of a job, though nothing has changed."""


class _Stretch(Struct):
    """The bounds of each share in one stretch of `SWINGS_NS`."""

    lows: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)
    highs: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict)

    def add(self, shares: Shares) -> None:
        """Widen the bounds to what was seen now."""
        for key, values in shares.items():
            self.lows[key] = tuple(map(min, values, self.lows.get(key, values)))
            self.highs[key] = tuple(map(max, values, self.highs.get(key, values)))


class Settled:
    """Remembers what all jobs did in the last 10 to 20 s, and since when the same is found of them.

    Work follows change: where findings have been the same for `SETTLED_NS`, and no share has left its bounds for a window, jobs are judged
    every `SELDOM_NS`.
    """

    def __init__(self) -> None:
        self._since_ns = self._judged_ns = self._turned_ns = self._moved_ns = 0
        self._due_ns: float = inf  # when a job without a sign of life is to be judged again
        self._latest, self._earlier = _Stretch(), _Stretch()
        self._parties: Parties = {}
        self._findings: set[tuple[int, str, str, str]] = set()  # pid of a trainer, symptom, cause, phase

    def note(self, t_ns: int, parties: Parties, shares: Shares, standing: Sequence[Standing], *, awaits: bool) -> None:
        """Take in a judgement: `Window.parties` and `Window.shares` that were judged, and each job's standing. ``awaits``: whether
        something depends on the time that passes, so that each feed counts; so does each while a phase lasts that time ends, or a job
        hangs or pauses. Another job without a sign of life is judged again at the times of `_STILL_S`."""
        if self._leave_bounds(shares):
            self._moved_ns = t_ns
        if t_ns - self._turned_ns >= policy.SWINGS_NS:
            self._latest, self._earlier, self._turned_ns = _Stretch(), self._latest, t_ns
        findings = {(one.job.trainer.pid, one.symptom, one.cause, one.phase.word) for one in standing}
        if awaits or parties != self._parties or findings != self._findings or any(map(_awaits, standing)):
            self._since_ns = t_ns
            for stretch in (self._latest, self._earlier):  # bounds of before are of another state, or of a window that was not full
                stretch.lows, stretch.highs = {}, {}
        self._due_ns = t_ns + 1e9 * min(map(_holds_s, standing), default=inf)
        self._latest.add(shares)
        self._judged_ns, self._parties, self._findings = t_ns, parties, findings

    def rests(self, t_ns: int, parties: Parties, shares: Shares, every_ns: int = policy.FEED_EVERY_NS) -> bool:
        """Whether the last judgement still holds: findings have been the same for long, and each share is within its bounds.
        ``every_ns``: the time between two looks; of seldom ones it holds for two."""
        if t_ns - self._since_ns < policy.SETTLED_NS or t_ns - self._moved_ns < policy.WINDOW_NS or t_ns >= self._due_ns:
            return False
        lasts_ns = max(policy.SELDOM_NS, 3 * every_ns - policy.TICK_SLACK_NS)
        return t_ns - self._judged_ns < lasts_ns and parties == self._parties and not self._leave_bounds(shares)

    def _leave_bounds(self, shares: Shares) -> bool:
        latest, earlier = self._latest, self._earlier
        for key, values in shares.items():
            lows, highs = latest.lows.get(key, values), latest.highs.get(key, values)
            least, most = earlier.lows.get(key, lows), earlier.highs.get(key, highs)
            if any(value <= min(bounds) - policy.MOVES for value, *bounds in zip(values, lows, least, strict=True)):
                return True
            if any(value >= max(bounds) + policy.MOVES for value, *bounds in zip(values, highs, most, strict=True)):
                return True
        return False


def _awaits(one: Standing) -> bool:
    return one.phase.word not in _LASTING or (_lasts_on(one) and _holds_s(one) < inf)


def _lasts_on(one: Standing) -> bool:
    """True for trouble that is told with the time for which it lasts: a hang, a pause, and what is not explained yet."""
    return one.troubled and (one.judge is None or one.judge.explains_hangs or one.cause == "pause")


def _holds_s(one: Standing) -> float:
    """Seconds until a job is judged otherwise though it stays as it is; infinite if it moves, or has been still for long."""
    still_s = one.job.life.still_s
    if one.phase.word != TRAINING or still_s <= 0.0:
        return inf
    return next((least_s - still_s for least_s in _STILL_S if still_s < least_s), inf)
