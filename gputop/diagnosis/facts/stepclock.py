"""The training step, found without touching the code: steps per second, and what a step is made of.

By the probe: each step copies its batch to the GPU and waits for it now and then, so the rarer of the two sets the pace, unless it is
so rare that it is a log line, or copies per wait change from one second to the next. Else by the GPU's own rhythm: the first strong peak
of the autocorrelation of its power (or utilization), which shows steps of most of a second and longer. None if neither is clear, without
work for the GPU, while it pauses (pauses have a rhythm, too), and while a trainer waits for several workers: their batches come in
bunches, and so do its steps.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from operator import mul

from gputop.diagnosis.facts.facts import CallFacts, JobFacts
from gputop.findings import policy
from gputop.findings.verdict import Step

GRID_NS = 100_000_000
_NEAR_NS = GRID_NS * 3 // 4
SPAN_NS = 15_000_000_000


class Rhythm:
    """The last seconds of one GPU's activity on a grid of `GRID_NS`."""

    __slots__ = ("averaged", "points")

    def __init__(self) -> None:
        self.points: deque[tuple[int, float]] = deque()
        self.averaged = False

    def push(self, t_ns: int, value: float, averaged: bool = False) -> None:
        """Add a reading; at most one per grid step is kept. ``averaged``: readings are means over about a grid step, in per cent."""
        self.averaged = averaged
        if self.points and t_ns - self.points[-1][0] < _NEAR_NS:
            return
        self.points.append((t_ns, value))
        while self.points[-1][0] - self.points[0][0] > SPAN_NS:
            self.points.popleft()

    def per_s(self) -> float | None:
        """Periods per second; None if no period is clear."""
        values = _on_grid(self.points)
        least = policy.LEAST_SWING_PCT if self.averaged else policy.LITTLE * sum(values) / max(1, len(values))
        if len(values) < policy.LEAST_POINTS or 2 * len(self.points) < policy.LEAST_POINTS or _swing(values) < least:
            return None
        correlation = _autocorrelation(values)
        lag = _first_peak(correlation)
        return None if lag is None or lag < policy.TOLD_LAG else 1e9 / (_period(correlation, lag) * GRID_NS)


def _swing(values: Sequence[float]) -> float:
    """Difference between the ordinary highs and lows: the 90th and the 10th percentile."""
    ordered = sorted(values) or [0.0]
    return ordered[len(ordered) * 9 // 10] - ordered[len(ordered) // 10]


class Clock:
    """The steadiness of one trainer's calls: `from_calls` holds only if most of its windows fit the same number of copies per wait."""

    __slots__ = ("_fit", "_windows")

    def __init__(self) -> None:
        self._fit: Counter[int] = Counter()
        self._windows = 0

    def note(self, calls: CallFacts) -> None:
        """Add a window; one without calls is ignored."""
        if max(_rates(calls)) >= policy.SLOWEST_STEP_PER_S:
            self._windows += 1
            self._fit.update(each for each in range(policy.MOST_COPIES + 1) if _fits(each, calls))

    def per_s(self, calls: CallFacts | None) -> float | None:
        """Steps per second by the counts of a window or of a longer time; None if the counts are no clock, or no steady one."""
        pace = from_calls(calls)
        return pace if calls is None or self._fit[_copies(calls)] >= policy.MOST * self._windows else None


def from_calls(calls: CallFacts | None) -> float | None:
    """Steps per second by the probe's counts; None if they fit no number of copies per wait."""
    if calls is None or not _fits(_copies(calls), calls):
        return None
    if not calls.to_gpu_per_s and calls.rates and max(calls.rates) > policy.SAME_RATE * min(calls.rates):
        return None  # it is unknown which of the calls comes once a step
    if moves_weights(calls):
        return None
    copies, syncs = _rates(calls)
    pace = min(copies, syncs) if _copies(calls) else syncs
    return pace if pace <= policy.FASTEST_STEP_PER_S else None


def moves_weights(calls: CallFacts) -> bool:
    """True if the optimizer works on the host: its step copies each gradient there, and each weight back."""
    return are_weights(calls.from_gpu_bytes_per_s, calls.to_gpu_bytes_per_s)


def are_weights(there: float, back: float, least: float = policy.BOTH_WAYS_BYTES_PER_S) -> bool:
    """True if as many bytes per second come from GPUs as go back, and so many as gradients and weights have: ``least`` each way."""
    return min(there, back) >= least and abs(there - back) <= policy.QUARTER * back


def _rates(calls: CallFacts) -> tuple[float, float]:
    """(copies to the GPU, synchronizes) per second."""
    return calls.to_gpu_per_s or calls.copy_per_s, calls.most_syncs_per_s


def _copies(calls: CallFacts) -> int:
    """Copies to the GPU per synchronize: 0 without copies, `policy.MOST_COPIES` + 1 without synchronizes."""
    copies, syncs = _rates(calls)
    if copies < policy.SLOWEST_STEP_PER_S:
        return 0
    return max(1, round(copies / syncs)) if syncs >= policy.SLOWEST_STEP_PER_S else policy.MOST_COPIES + 1


def _fits(each: int, calls: CallFacts) -> bool:
    """True if ``each`` copies may come per synchronize; with one copy there may be more synchronizes than steps."""
    copies, syncs = _rates(calls)
    if each == 0:
        return copies < policy.SLOWEST_STEP_PER_S and policy.ALONE_PER_S[0] <= syncs <= policy.ALONE_PER_S[1]
    apart = copies - each * syncs
    return each <= policy.MOST_COPIES and (abs(apart) if each > 1 else apart) <= each * (policy.LITTLE * syncs + 1.0 / calls.seconds)


def step_of(job: JobFacts, clock: Clock, rhythm: float | None, data: float, together: int | None = None) -> Step | None:
    """One step of the job: its pace, and its main thread's time divided by it; None if no clock finds it. ``data``: share of the window in
    which the trainer waited for data. ``together``: copies to the GPU that a rank of several makes at once; None if that is not known."""
    pace, calls = clock.per_s(job.cuda.calls), job.cuda.calls
    if pace is not None and calls is not None and together and data <= policy.LITTLE:  # batches of a slow loader come in bunches, too
        each = calls.to_gpu_per_s / together
        pace = each if pace > policy.SAME_RATE * each > 0.0 else pace  # several waits in a step, as one for each bucket of gradients
    if pace is not None:
        return split(pace, "CUDA calls", job.trainer.state.fractions)
    if rhythm is None or job.pauses.spans or (len(job.workers) > 1 and data > 0.0) or _steps_more_often(job, rhythm):
        return None
    return split(rhythm, "GPU rhythm", job.trainer.state.fractions)


def _steps_more_often(job: JobFacts, rhythm: float) -> bool:
    """True if the trainer copies, or by samples waits, more often than ``rhythm``: so slow a period is a log line, several steps of about a
    reading's length, or an evaluation."""
    if job.cuda.calls is not None:
        return job.cuda.calls.to_gpu_per_s > policy.MOST_COPIES * (1.0 + policy.LITTLE) * rhythm
    return job.cuda.sampled is not None and job.cuda.sampled.seen_per_s > policy.SAME_RATE * rhythm


def split(pace: float, source: str, fractions: Mapping[str, float]) -> Step:
    """The step of a trainer that makes ``pace`` steps per second and spends ``fractions`` of its time in each state."""
    ms = 1000.0 / pace
    data, transfer, gpu = (fractions.get(word, 0.0) for word in ("waiting-data", "transfer", "waiting-gpu"))
    computing = fractions.get("computing", 0.0)
    rest = max(0.0, 1.0 - data - transfer - gpu - computing)
    return Step(
        per_s=pace, source=source, input_wait_ms=data * ms, transfer_ms=transfer * ms, compute_ms=computing * ms, gpu_wait_ms=gpu * ms,
        other_ms=rest * ms,
    )


def _on_grid(points: Sequence[tuple[int, float]]) -> list[float]:
    """The value in force at each grid step."""
    if not points:
        return []
    values, last = [], points[0][1]
    remaining = deque(points)
    for t_ns in range(points[0][0], points[-1][0] + 1, GRID_NS):
        while remaining and remaining[0][0] <= t_ns + GRID_NS // 2:
            last = remaining.popleft()[1]
        values.append(last)
    return values


def _autocorrelation(values: Sequence[float]) -> list[float]:
    """Autocorrelation for lags from 0 to half the length, so that a peak and its double both fit; empty if the values hardly vary."""
    mean = sum(values) / len(values)
    centred = [value - mean for value in values]
    power = sum(value * value for value in centred) / len(centred)
    if power <= (policy.HARDLY * mean) ** 2 or power <= 0.0:
        return []
    return [sum(map(mul, centred, centred[lag:])) / ((len(centred) - lag) * power) for lag in range(len(values) // 2)]


def _first_peak(correlation: Sequence[float]) -> int | None:
    lowest = 1.0
    for lag in range(1, len(correlation) - 1):
        lowest = min(lowest, correlation[lag])
        here = correlation[lag]
        tops = correlation[lag - 1] <= here >= correlation[lag + 1]
        if lag >= policy.LEAST_LAG and tops and here >= policy.HALF and here - lowest >= policy.QUARTER:
            return lag if max(correlation[2 * lag - 1 : 2 * lag + 2], default=0.0) >= policy.HALF else None
    return None


def _period(correlation: Sequence[float], lag: int) -> float:
    """The period near a first peak, in grid steps: the last of its multiples at which a peak stands, divided by their number, so that whole
    grid steps hardly round it. A peak between two grid steps stands where the parabola of three points has its top."""
    period, periods = float(lag), 1
    while (near := round((periods + 1) * period)) + 2 < len(correlation):
        top = max(range(near - 1, near + 2), key=correlation.__getitem__)
        before, here, after = correlation[top - 1 : top + 2]
        if here < policy.HALF or not before <= here >= after:
            break
        bend = before - 2 * here + after
        periods += 1
        period = (top + (0.5 * (before - after) / bend if bend < 0.0 else 0.0)) / periods
    return period
