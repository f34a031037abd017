"""A trial: a cause is switched off and on in turn, and the job's pace is compared pair by pair.

A state machine without a clock or a thread of its own. Samples come in, `Trial.on` is what has to be in force, and its driver calls
`switched` when it is. Each pair has an arm ``off`` (all as it was) and an arm ``on`` (the intervention in force).

The order within a pair is drawn by lot, and the next pair has the other order, so that what drifts steadily cancels out in two pairs and
never looks like a gain. After each switch the job has `TrialSettings.settle_s` to use up what was prepared before.

An arm without counted steps does not count: its GPU did as much as in the other arms of its side, and its clock made hardly a step. Its
pair is dropped, and another one is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import inf, log
from random import Random
from statistics import median

from msgspec import Struct, field

from gputop.diagnosis.facts.points import facts_of
from gputop.diagnosis.facts.stepclock import from_calls
from gputop.model.frame import SECOND_NS, CudaCall
from gputop.model.serving import Serving
from gputop.prove import served
from gputop.prove.served import FIRST_TOKEN, REQUESTS, TOKENS, ServedStretch
from gputop.prove.statistics import LEAST_PAIRS, Estimate, estimate

STEPS, GPU_WORK = "steps", "gpu_work"  # metrics of any job, besides those of a server (`gputop.prove.served`)
UNITS = {STEPS: "steps/min", GPU_WORK: "% GPU work", **served.UNITS}
LEAST_STEPS = 4  # steps for which an arm is made longer; with fewer on the faster side the GPU's work is compared instead (guess)
SAME_RATE = 0.05  # relative distance within which a call sets the pace that the step clock found (`stepclock.WHOLE`)
HALF_STEP, HALF_PCT = 0.5, 0.5  # steps (tokens, requests) and % of GPU work that a side of a ratio has at least: one that stands still, too
UNCOUNTED = 0.25  # of the steps that the GPU's work amounts to, below which an arm's steps were not counted (guess)
PAUSED_SHARE = 0.25  # of an arm's samples in which the job paused, from which the pause is reported (guess)
PULSE_SETTLE_S, PULSE_END_S = 0.2, 0.15  # s of a pulse that are not measured: its beginning, and its end before the next sample comes
LONGER = 2  # times as many pairs as asked for, where it is not clear before and the time is left
PULSE_PAIRS = 2  # times as many pairs where an arm is a pulse of a second
SERVED_METRICS = 2  # of a server, both of which may prove a gain: its pace, and its time to the first token
PAIRS, SECONDS = 4, 3.0  # of a trial; s of an arm: 20 s for three pairs, and a few readings of NVML's utilization in each arm


class TrialSettings(Struct, frozen=True):
    """Durations of a trial."""

    pairs: int = PAIRS  # `LONGER` times as many if these are too noisy
    seconds: float = SECONDS  # of an arm, settling included
    settle_s: float = 0.5
    limit_s: float = 60.0
    pulse_s: float | None = None  # longest time that the intervention may be on at a stretch
    most_s: float = 0.0  # of an arm in which there were fewer than `LEAST_STEPS` before

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of pairs after which it is decided if it is clear; after the last one it ends in any case."""
        pairs = self.pairs * PULSE_PAIRS if self.pulse_s is not None else self.pairs
        chosen = {LEAST_PAIRS, pairs, pairs + (pairs + 1) // 2, LONGER * pairs}
        return tuple(sorted(look for look in chosen if LEAST_PAIRS <= look <= LONGER * pairs)) or (pairs,)

    @property
    def measured_s(self) -> float:
        """Seconds of an arm that count, at least half."""
        if self.pulse_s is not None:
            return self.pulse_s - PULSE_SETTLE_S - PULSE_END_S
        return max(self.seconds - self.settle_s, self.seconds / 2)

    @property
    def settled_s(self) -> float:
        """Seconds after a switch that do not count."""
        return PULSE_SETTLE_S if self.pulse_s is not None else self.settle_s


class JobSample(Struct):
    """State of the job in one frame."""

    t_ns: int
    calls: Mapping[str, CudaCall] = {}  # the trainer's CUDA calls, cumulative; empty where they are not probed
    calls_ns: int = 0  # when they were read
    work_pct: float | None = None  # how busy its GPUs were since the last sample; None: no fresh reading
    paused: bool = False
    cause: str = "none"  # the diagnosis's cause at this moment
    gone: bool = False  # the trainer has ended
    pages: tuple[Serving, ...] = ()  # the newest of its inference server


class Arm(Struct):
    """One arm as measured."""

    on: bool
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)  # CUDA call -> how many were made
    pace: float | None = None  # steps a second by the step clock, None where it finds none
    counted_s: float = 0.0  # between the first and the last reading of the calls
    work_pct: float | None = None
    paused: bool = False
    steps: dict[str, float] = field(default_factory=dict)  # as ``counts``, with the parts of steps at both ends
    served: ServedStretch | None = None  # what its inference server did, from the first page in the arm to the last

    def value(self, metric: str, clock: str = "") -> float | None:
        """The arm by a metric, in its unit; None if that was not measured. ``clock``: of steps, the call that sets the pace."""
        if metric == STEPS:
            return 60.0 * self.steps.get(clock, 0.0) / self.counted_s if clock and self.counted_s > 0.0 else None
        if metric == GPU_WORK:
            return self.work_pct
        return None if self.served is None else self.served.value(metric)

    def least(self, metric: str) -> float:
        """The least that the arm has of a metric, however little was measured."""
        if metric == GPU_WORK:
            return HALF_PCT
        seconds = self.counted_s if metric == STEPS else self.served.seconds if self.served is not None else 0.0
        return 0.0 if metric == FIRST_TOKEN or not seconds else (60.0 if metric == STEPS else 1.0) * HALF_STEP / seconds


class Pair(Struct):
    """Two arms that follow each other."""

    order: str  # ``off-on`` or ``on-off``
    off: Arm
    on: Arm

    def ratio_log(self, metric: str, clock: str = "") -> float | None:
        """The logarithm of how many times as fast the job was with the change; None if that was not read."""
        off, on = (arm.value(metric, clock) for arm in (self.off, self.on))
        if off is None or on is None:
            return None
        off, on = max(off, self.off.least(metric)), max(on, self.on.least(metric))
        if not off or not on:
            return None
        return log(off / on) if metric == FIRST_TOKEN else log(on / off)


class Outcome(Struct):
    """Outcome of a trial."""

    result: str  # ``proved``, ``disproved`` or ``undecided``
    reason: str  # of ``undecided``; otherwise empty
    pairs: list[Pair]
    metric: str = ""  # a key of `UNITS`; empty where nothing could be compared
    clock: str = ""  # the CUDA call that comes once a step
    estimate: Estimate | None = None
    seconds: float = 0.0
    dropped: int = 0  # pairs with an arm whose steps were not counted

    def mean(self, on: bool, metric: str = "") -> float | None:
        """All arms of a side by a metric (empty: the trial's own), in its unit; None if it was not measured."""
        arms = [pair.on if on else pair.off for pair in self.pairs]
        metric = metric or self.metric
        if metric in served.UNITS:
            return None if (all_of_them := self.served(on)) is None else all_of_them.value(metric)
        known = [value for arm in arms if (value := arm.value(metric, self.clock)) is not None]
        return sum(known) / len(known) if known else None

    def served(self, on: bool) -> ServedStretch | None:
        """Growth of the counters of the job's server in all arms of a side; None if its pages were not read."""
        return served.together((pair.on if on else pair.off).served for pair in self.pairs)

    @property
    def faster_pairs(self) -> int:
        """Pairs in which the job was faster with the intervention."""
        return sum(1 for pair in self.pairs if (pair.ratio_log(self.metric, self.clock) or 0.0) > 0.0)


class _Judged(Struct):
    """Result of the pairs so far."""

    metric: str = ""
    clock: str = ""  # of steps
    estimate: Estimate | None = None
    is_open: bool = False  # more pairs may still prove a gain by another metric


class Trial:
    """Feed it samples; `on` is what has to be in force, `outcome` is set at the end."""

    def __init__(self, settings: TrialSettings, cause: str, lot: Random | None = None) -> None:
        self.on = False
        self.pairs: list[Pair] = []
        self.dropped = 0  # pairs with an arm whose steps were not counted
        self.outcome: Outcome | None = None
        self.settings, self._cause = settings, cause
        self._plan = _segments(lot or Random(), settings)
        self._arms: list[Arm] = []  # of the pair that is being measured
        self._measures = False
        self._in_force = False
        self._ready_ns: int | None = None  # from when on samples count; None while a switch is due
        self._samples: list[JobSample] = []  # of the arm that is being measured
        self._began_ns = 0
        self._others: list[str] = []  # other causes that the diagnosis named while nothing was changed

    @property
    def clock(self) -> str:
        """The CUDA call that comes once a step, as far as is known by now; empty if none does."""
        return _clock(self.pairs)

    def so_far(self) -> Outcome:
        """The trial as far as it has come: an outcome that has no result yet."""
        judged = self._judged()
        return Outcome("", "", list(self.pairs), judged.metric, judged.clock, judged.estimate, dropped=self.dropped)

    def switched(self, t_ns: int) -> None:
        """Note that what `on` asks for has been in force since ``t_ns`` (CLOCK_MONOTONIC)."""
        self._in_force = self.on
        self._ready_ns = t_ns + round(self.settings.settled_s * SECOND_NS)

    def feed(self, sample: JobSample) -> None:
        """Take the next sample."""
        if self.outcome is not None:
            return
        if not self._began_ns:
            self._began_ns = sample.t_ns
            self._next_segment(sample.t_ns)
        if sample.gone:
            self.end("the trainer has ended", sample.t_ns)
        elif sample.t_ns - self._began_ns > self.settings.limit_s * SECOND_NS:
            self.end(self._why_undecided(self._judged()), sample.t_ns)
        elif self._ready_ns is not None and sample.t_ns >= self._ready_ns:
            self._measure(sample)

    def end(self, reason: str, t_ns: int) -> None:
        """End undecided."""
        self._finish("undecided", reason, t_ns, self._judged())

    def _next_segment(self, t_ns: int) -> None:
        self.on, self._measures = next(self._plan)
        self._samples = []
        self._ready_ns = t_ns if self.on == self._in_force else None

    def _measure(self, sample: JobSample) -> None:
        self._samples.append(sample)
        seconds = (sample.t_ns - self._samples[0].t_ns) / SECOND_NS
        if seconds < self.settings.measured_s or (seconds < self.settings.most_s and self._has_few_steps()):
            return
        if self._measures:
            self._arms.append(arm_of(self.on, self._samples))
            if not self.on and sample.cause not in ("none", "unexplained", self._cause):
                self._others.append(sample.cause)
        if len(self._arms) == 2:
            first, second = self._arms
            off, on = (second, first) if first.on else (first, second)
            self.pairs.append(Pair("on-off" if first.on else "off-on", off, on))
            self._arms = []
            self._look(sample.t_ns)
        if self.outcome is None:
            self._next_segment(sample.t_ns)

    def _has_few_steps(self) -> bool:
        """True if the segment has too few steps, counted by the clock, or by the most frequent call while no clock is known. False for a
        job that stands still: its steps would not come."""
        counts = _counts(self._samples)
        return 0 < counts.get(self.clock, max(counts.values(), default=0)) < LEAST_STEPS

    def _look(self, t_ns: int) -> None:
        """Decide, if it is time to look, and clear by now."""
        looks = self.settings.looks
        if len(self.pairs) >= LEAST_PAIRS and self._metric()[0] == STEPS:
            counted = _counted(self.pairs, self.clock)
            self.dropped += len(self.pairs) - len(counted)
            self.pairs = counted
        if len(self.pairs) not in looks:
            return
        judged = self._judged()
        found, is_last = judged.estimate, len(self.pairs) == looks[-1]
        is_clear = found is not None and (found.proved or (found.disproved and (is_last or not judged.is_open)))
        if found is not None and len(self.pairs) >= LEAST_PAIRS and is_clear:
            self._finish("proved" if found.proved else "disproved", "", t_ns, judged)
        elif is_last:
            self._finish("undecided", self._why_undecided(judged), t_ns, judged)

    def _metric(self) -> tuple[str, str]:
        """(metric, the call that is the clock of steps): a server's tokens, else its requests, else steps, else the GPU's work."""
        arms = [arm for pair in self.pairs for arm in (pair.off, pair.on)]
        for metric in (TOKENS, REQUESTS):
            values = [arm.value(metric) for arm in arms]
            if values and None not in values and any(values):
                return metric, ""
        clock = self.clock
        return (STEPS if clock else GPU_WORK), clock

    def _judged(self) -> _Judged:
        """The gain so far, by the metric that shows it. A server's pace is its clients' where these ask no faster: there the time to the
        first token may show a gain that its pace does not."""
        metric, clock = self._metric()
        logs = self._logs(metric, clock)
        if not logs:
            return _Judged()
        if metric not in (TOKENS, REQUESTS):
            return _Judged(metric, clock, estimate(logs, self.settings.looks) if len(logs) > 1 else None)
        first = self._logs(FIRST_TOKEN)
        share = SERVED_METRICS if first else 1
        pace, sooner = (estimate(each, self.settings.looks, share) if len(each) > 1 else None for each in (logs, first))
        if pace is None or sooner is None or pace.proved or pace.high < 0.0:
            return _Judged(metric, "", pace)
        return _Judged(FIRST_TOKEN, "", sooner) if sooner.proved else _Judged(metric, "", pace, is_open=not sooner.disproved)

    def _logs(self, metric: str, clock: str = "") -> list[float]:
        """The logarithms of all pairs' ratios; none if one was not measured."""
        logs = [value for pair in self.pairs if (value := pair.ratio_log(metric, clock)) is not None]
        return logs if len(logs) == len(self.pairs) else []

    def _why_undecided(self, judged: _Judged) -> str:
        metric, found = judged.metric, judged.estimate
        if any(arm.paused for pair in self.pairs for arm in (pair.off, pair.on)):
            return "the job paused during the trial (a checkpoint, an evaluation): try again"
        if self._others:
            return f"another cause came up during the trial: {self._others[-1]}"
        if not metric:
            return "neither steps nor the GPU's work could be measured"
        if self.dropped > len(self.pairs):
            return "its steps were not counted most of the time: try again"
        if found is None or len(self.pairs) < LEAST_PAIRS:
            return f"fewer than {LEAST_PAIRS} pairs: ask for --pairs {LEAST_PAIRS} or more"
        steps = max((arm.pace or 0.0) * arm.counted_s for pair in self.pairs for arm in (pair.off, pair.on))
        if metric == "gpu_work" and 0.0 < steps < LEAST_STEPS:
            return "too few steps: ask for longer arms (--seconds 10)"
        return "too noisy: ask for more pairs (--pairs 12) or longer arms (--seconds 6)"

    def _finish(self, result: str, reason: str, t_ns: int, judged: _Judged) -> None:
        self.on = False
        self.outcome = Outcome(
            result, reason, self.pairs, judged.metric, judged.clock, judged.estimate, (t_ns - self._began_ns) / SECOND_NS, self.dropped
        )  # fmt: skip


def _segments(lot: Random, settings: TrialSettings) -> Iterator[tuple[bool, bool]]:
    """(on, measured) of one stretch after another: arms, and where two pulses would meet a rest between them."""
    is_on_first = was_on = False
    for number in range(1 << 30):
        is_on_first = bool(lot.getrandbits(1)) if number % 2 == 0 else not is_on_first
        for on in (is_on_first, not is_on_first):
            if on and was_on and settings.pulse_s is not None:
                yield False, False
            was_on = on
            yield on, True


def arm_of(on: bool, samples: Sequence[JobSample]) -> Arm:
    """The arm that these samples, at least two, make together."""
    first, last = samples[0], samples[-1]
    counts = _counts(samples)
    made = facts_of(dict(first.calls), dict(last.calls), last.calls_ns - first.calls_ns)
    works = [sample.work_pct for sample in samples[1:] if sample.work_pct is not None]
    return Arm(
        on, (last.t_ns - first.t_ns) / SECOND_NS, counts, from_calls(made), (last.calls_ns - first.calls_ns) / SECOND_NS,
        sum(works) / len(works) if works else None, sum(one.paused for one in samples) > PAUSED_SHARE * len(samples),
        {name: _steps([(one.calls_ns, one.calls[name].count) for one in samples if name in one.calls]) for name in counts},
        _served(samples),
    )  # fmt: skip


def _served(samples: Sequence[JobSample]) -> ServedStretch | None:
    """Growth of the server's counters, by the pages that came in the arm: an older one may be from before the switch."""
    came = [one.pages for one in samples if one.pages and all(page.t_ns >= samples[0].t_ns for page in one.pages)]
    return served.between(came[0], came[-1]) if came else None


def _counts(samples: Sequence[JobSample]) -> dict[str, int]:
    """CUDA call -> number of calls between the first and the last sample; without calls that are only sampled: those are estimates."""
    before = samples[0].calls
    known = {name: call.count for name, call in samples[-1].calls.items() if call.share == 1.0}
    return {name: count - (before[name].count if name in before else 0) for name, count in known.items()}


def _steps(counted: Sequence[tuple[int, int]]) -> float:
    """Steps between the first and the last reading (ns, count), with parts: slow steps that are only counted are known to one or two.

    Between the first and the last change there are whole steps. What is before and behind lasts as long as so many of them, and no longer
    than the most that ever came at once: a stall at an end is no step.
    """
    changes = [i for i in range(1, len(counted)) if counted[i][1] > counted[i - 1][1]]
    total = float(counted[-1][1] - counted[0][1]) if counted else 0.0
    if len(changes) < 2:
        return total
    (first_ns, first), (last_ns, last) = counted[changes[0]], counted[changes[-1]]
    most = max(counted[i][1] - counted[i - 1][1] for i in changes)
    step_ns = (last_ns - first_ns) / (last - first)
    return last - first + min(most, (first_ns - counted[0][0]) / step_ns) + min(most, (counted[-1][0] - last_ns) / step_ns)


def _counted(pairs: list[Pair], clock: str) -> list[Pair]:
    """The pairs without uncounted arms: arms with fewer steps than `UNCOUNTED` of the number that its GPU's work amounts to, at
    what a step took in the other arms of its side."""
    lost = {id(arm) for arms in ([pair.off for pair in pairs], [pair.on for pair in pairs]) for arm in arms if _uncounted(arm, arms, clock)}
    return [pair for pair in pairs if not {id(pair.off), id(pair.on)} & lost]


def _uncounted(arm: Arm, arms: Sequence[Arm], clock: str) -> bool:
    costs = [cost for other in arms if other is not arm and (cost := _work_per_step(other, clock)) is not None]
    made, cost = arm.steps.get(clock, 0.0), median(costs) if costs else inf
    if not clock or arm.work_pct is None or not 0.0 < cost < inf:
        return False
    worth = arm.work_pct * arm.counted_s / cost
    return worth >= LEAST_STEPS and made < UNCOUNTED * worth


def _work_per_step(arm: Arm, clock: str) -> float | None:
    """GPU work of a step, in % x s; infinite without steps; None if the work was not read."""
    made = arm.steps.get(clock, 0.0)
    if arm.work_pct is None:
        return None
    return arm.work_pct * arm.counted_s / made if made > 0.0 else inf


def _clock(pairs: Sequence[Pair]) -> str:
    """The CUDA call that comes once a step, by the fastest arm; empty if none does, or too few steps were made."""
    arms = [arm for pair in pairs for arm in (pair.off, pair.on)]
    paced = [(arm.pace, arm) for arm in arms if arm.pace is not None and arm.counted_s > 0.0]
    if not paced or any(arm.counted_s <= 0.0 for arm in arms):
        return ""
    pace, fastest = max(paced, key=lambda one: one[0])
    away = {name: abs(count / fastest.counted_s - pace) / pace for name, count in fastest.counts.items()}
    name = min(away, key=lambda one: (away[one], one), default="")
    return name if name and away[name] <= SAME_RATE and fastest.counts[name] >= LEAST_STEPS else ""
