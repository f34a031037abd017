"""Runs a trial of a plan on a stream, and reports its outcome: in a line, as JSON, and as a marker in recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from math import exp
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from gputop.findings.sentence import plain
from gputop.findings.verdict import Cause, WhatIf
from gputop.model.frame import SECOND_NS
from gputop.model.ranges import Pid
from gputop.model.stream import EXPERIMENT_BEGINS, EXPERIMENT_ENDED
from gputop.prove.change import Case, Plan, Refusal
from gputop.prove.guardian import ExperimentEnding, Guard
from gputop.prove.interventions import plan
from gputop.prove.statistics import gain_pct
from gputop.prove.trial import HALF_PCT, JobSample, Outcome, Pair, Trial, arm_of
from gputop.system.text import figure

FOLLOW_S = 60.0  # s that a kept fix is followed, as is promised to users
LEAST_FOLLOWED_S = 5.0  # s without which the gain is not reported
GONE = "all that was to be changed has ended: try again"
UNMEASURED, STANDSTILL = "not measured", "from a standstill"  # in place of a gain


class Switch(Protocol):
    """Switches the intervention on and off. Both methods raise OSError with a line for the user."""

    def on(self) -> None: ...

    def off(self) -> None: ...


class KeptGain(Struct, frozen=True):
    """Pace of the job after a fix was kept."""

    seconds: float
    value: float | None  # in the unit of the trial's metric
    gain_pct: float | None  # against the arms without the fix
    unit: str = ""


class ArmPace(Struct, frozen=True):
    """The pace of one arm of an experiment."""

    steps_per_min: float | None
    gpu_work: float | None  # %


class ArmPair(Struct, frozen=True):
    """A pair of arms."""

    order: str
    off: ArmPace
    on: ArmPace
    gain_pct: float | None


class Changed(Struct, frozen=True):
    """A process that an experiment changes."""

    pid: int
    name: str
    user: str
    other_user: bool
    job: bool
    cpu_pct: float | None
    reason: str


class Proof(Struct, frozen=True, kw_only=True):
    """Output of `gputop prove --json`. Where nothing was tried, what was not measured stays None."""

    schema: int = 1
    result: str | None = None  # ``proved``, ``disproved`` or ``undecided``; None: nothing was tried, for ``reason``
    reason: str | None = None
    cause: Cause | None = None
    trainer_pid: Pid | None = None
    intervention: str | None = None
    says: str | None = None  # what was changed, or would have been
    pairs: list[ArmPair] = []
    gain_pct: float | None = None
    gain_low_pct: float | None = None
    gain_high_pct: float | None = None
    steps_per_min_off: float | None = None
    steps_per_min_on: float | None = None
    gpu_work_off: float | None = None
    gpu_work_on: float | None = None
    metric: str | None = None  # ``steps`` or ``gpu_work``
    seconds: float = 0.0
    missing: dict[str, str] = {}  # figure -> why it has no value
    kept: bool = False
    kept_s: float | None = None
    kept_gain_pct: float | None = None
    processes: list[Changed] = []
    left: list[str] = []  # as ``theirs`` of `gputop.prove.guardian.ExperimentEnding`
    what_if: list[WhatIf] | UnsetType = UNSET  # where nothing was tried


def planned_for(case: Case, allow_stop: bool = False) -> Plan | Refusal:
    """Plan for this case, or the reason in words why nothing can be tried."""
    return plan(case, allow_stop=allow_stop)


def run(samples: Iterator[JobSample], trial: Trial, switch: Switch) -> Iterator[Pair]:
    """Drive the trial to its end; each pair when it is complete. `Trial.outcome` is set afterwards.

    A switch that fails ends it undecided, and so does the end of the samples.
    """
    is_on, told, last_ns = False, 0, 0
    for sample in samples:
        last_ns = sample.t_ns
        trial.feed(sample)
        if trial.on != is_on:
            try:
                (switch.on if trial.on else switch.off)()
            except OSError as error:
                return trial.end(str(error.strerror or error), last_ns)
            is_on = trial.on
            trial.switched(time.monotonic_ns())
        yield from trial.pairs[told:]
        told = len(trial.pairs)
        if trial.outcome is not None:
            return None
    return trial.end("the stream of frames ended", last_ns)


def experiment(
    samples: Iterator[JobSample],
    planned: Plan,
    trial: Trial,
    mark: Callable[[str], object],
    keep: bool = False,
    ending: ExperimentEnding | None = None,
) -> Generator[Pair | Outcome | KeptGain]:
    """Run the whole experiment: pairs, the outcome, and with ``keep`` the pace after the fix if it is proved. Everything else is put back
    in any case.

    The user has agreed to it. ``ending`` holds afterwards how things were left. ``mark`` gets the markers at its begin and end; the second
    one has the result. Raises OSError with a line for the user if nothing could be changed.
    """
    ended = "broken off"
    mark(f"{EXPERIMENT_BEGINS}: {planned.says}")
    try:
        with Guard(planned, agreed=True, ending=ending) as guard:
            yield from run(_heard(samples, guard), trial, guard)
            assert trial.outcome is not None
            reason = trial.outcome.reason.removeprefix(f"{planned.says}: ")
            trial.outcome.reason = GONE if reason == "it has ended" else reason
            ended = _ended(trial.outcome)
            yield trial.outcome
            if keep and planned.may_keep and trial.outcome.result == "proved":
                guard.keep()
                found = follow(samples, trial.outcome, trial.settings.settle_s)
                ended = f"{ended}; {followed_line(found)}"
                yield found
    finally:
        mark(f"{EXPERIMENT_ENDED} {ended}: {planned.says}")


def _heard(samples: Iterator[JobSample], guard: Guard) -> Iterator[JobSample]:
    for sample in samples:
        guard.beat()
        yield sample


def follow(samples: Iterator[JobSample], outcome: Outcome, settle_s: float, seconds: float = FOLLOW_S) -> KeptGain:
    """The job's pace with the fix that stays, over ``seconds`` of samples after ``settle_s``."""
    taken: list[JobSample] = []
    begin_ns: int | None = None
    for sample in samples:
        begin_ns = sample.t_ns + round(settle_s * SECOND_NS) if begin_ns is None else begin_ns
        if sample.gone:
            break
        if sample.t_ns >= begin_ns:
            taken.append(sample)
        if sample.t_ns >= begin_ns + seconds * SECOND_NS:
            break
    if len(taken) < 2 or (lasted := (taken[-1].t_ns - taken[0].t_ns) / SECOND_NS) < LEAST_FOLLOWED_S:
        return KeptGain(0.0, None, None)
    arm, is_steps = arm_of(True, taken), outcome.metric == "steps"
    value, before = arm.per_min(outcome.clock) if is_steps else arm.work_pct, outcome.mean(on=False, steps=is_steps)
    more = 100.0 * (value / before - 1.0) if value is not None and before else None
    return KeptGain(lasted, value, more, "steps/min" if is_steps else "% GPU work")


def pair_line(pair: Pair, number: int, clock: str) -> str:
    """A line for a pair: ``pair 2 (on-off): 182 → 311 steps/min, 1.7×``."""
    moved = _from_to(pair.off.per_min(clock), pair.on.per_min(clock), pair.off.work_pct, pair.on.work_pct)
    return f"pair {number} ({pair.order}): {moved}, {pair_gain(pair, clock)}"


def pair_gain(pair: Pair, clock: str) -> str:
    """``1.7×``: how many times as fast the job was with the change."""
    change = pair.ratio_log(clock)
    return STANDSTILL if _stands(pair, clock) else UNMEASURED if change is None else f"{figure(exp(change), 2)}×"


def told(says: str, outcome: Outcome) -> str:
    """The result in a line: ``fluent-bit (903) to idle priority: 182 → 311 steps/min, 1.7×, 1.6 to 1.8, 4 of 4 pairs: proved``."""
    if not outcome.pairs or outcome.estimate is None:
        return f"{says}: {outcome.result}: {outcome.reason}"
    moved = _moved(outcome)
    counted = f"{outcome.faster_pairs} of {len(outcome.pairs)} pairs"
    if outcome.result == "proved":
        return f"{says}: {moved}, {gain(outcome)}, {counted}: proved"
    if outcome.result == "disproved":
        is_slower = outcome.estimate.high < 0.0
        return f"{says}: {moved}: disproved: {'slower' if is_slower else 'no change'} ({gain(outcome)})"
    return f"{says}: {moved}, {gain(outcome)}, {counted}: undecided: {outcome.reason}"


def _ended(outcome: Outcome) -> str:
    """The result for a marker, which may be cut at its end: ``proved, 182 → 311 steps/min, 1.7×, 1.6 to 1.8``."""
    if outcome.estimate is None:
        return f"{outcome.result} ({outcome.reason})"
    return f"{outcome.result}, {_moved(outcome)}, {gain(outcome)}"


def _moved(outcome: Outcome) -> str:
    return _from_to(*(outcome.mean(on, steps) for steps in (True, False) for on in (False, True)))


def followed_line(found: KeptGain) -> str:
    """A line about the effect of a kept fix."""
    if found.value is None:
        return "the fix stays; the job could not be followed"
    gained = f", {_signed(found.gain_pct)}" if found.gain_pct is not None else ""
    return f"the fix stays: {figure(found.value, 3)} {found.unit} over {found.seconds:.0f} s{gained}"


def proof(case: Case, planned: Plan, outcome: Outcome, kept: KeptGain | None, no_clock: str, theirs: Sequence[str] = ()) -> Proof:
    """The object of ``--json``. ``no_clock``: why no steps are counted. ``theirs``: as in `gputop.prove.guardian.ExperimentEnding`."""
    found, stands = outcome.estimate, _stood(outcome)
    missing = {}
    if not outcome.clock:
        missing["steps_per_min"] = no_clock
    if outcome.mean(on=False, steps=False) is None:
        missing["gpu_work"] = "no utilization of the trainer's GPUs was read"
    if stands:
        missing["gain_pct"] = f"the job {'made no step' if outcome.metric == 'steps' else 'gave its GPUs no work'} without the change"
    return Proof(
        result=outcome.result, reason=outcome.reason or None, cause=case.cause, trainer_pid=case.trainer.pid,
        intervention=planned.intervention, says=planned.says, pairs=[_arms(pair, outcome.clock) for pair in outcome.pairs],
        gain_pct=_rounded(gain_pct(found.mean)) if found is not None and not stands else None,
        gain_low_pct=_rounded(gain_pct(found.low)) if found is not None else None,
        gain_high_pct=_rounded(gain_pct(found.high)) if found is not None and not stands else None,
        steps_per_min_off=_rounded(outcome.mean(on=False, steps=True)) if outcome.clock else None,
        steps_per_min_on=_rounded(outcome.mean(on=True, steps=True)) if outcome.clock else None,
        gpu_work_off=_rounded(outcome.mean(on=False, steps=False)), gpu_work_on=_rounded(outcome.mean(on=True, steps=False)),
        metric=outcome.metric if found is not None else None, seconds=round(outcome.seconds, 2), missing=missing, kept=kept is not None,
        kept_s=_rounded(kept.seconds) if kept is not None else None, kept_gain_pct=_rounded(kept.gain_pct) if kept is not None else None,
        processes=_processes(planned), left=list(theirs),
    )  # fmt: skip


def untried(
    reason: str, cause: str | None, trainer_pid: int | None, what_if: Sequence[WhatIf] = (), planned: Plan | None = None
) -> Proof:
    """The object of ``--json`` where nothing was tried. ``planned``: what would have been."""
    return Proof(
        reason=reason, cause=cause, trainer_pid=trainer_pid, intervention=None if planned is None else planned.intervention,
        says=None if planned is None else planned.says, processes=_processes(planned), what_if=[plain(one) for one in what_if],
    )  # fmt: skip


def _processes(planned: Plan | None) -> list[Changed]:
    """Processes that the plan changes."""
    return [
        Changed(one.target.pid, one.target.name, one.user, one.is_other, one.is_job, None if one.cpu is None else round(100 * one.cpu, 1),
                one.reason)
        for one in (planned.reached if planned is not None else ())
    ]  # fmt: skip


def _arms(pair: Pair, clock: str) -> ArmPair:
    off, on = (ArmPace(_rounded(arm.per_min(clock)), _rounded(arm.work_pct)) for arm in (pair.off, pair.on))
    return ArmPair(pair.order, off, on, _rounded(_pair_gain(pair, clock)))


def _pair_gain(pair: Pair, clock: str) -> float | None:
    change = pair.ratio_log(clock)
    return None if change is None or _stands(pair, clock) else gain_pct(change)


def _stands(pair: Pair, clock: str) -> bool:
    """True if no step was made, or no GPU worked, without the change: a gain over nothing is not finite."""
    return not pair.off.counts.get(clock) if clock else pair.off.work_pct is not None and pair.off.work_pct < HALF_PCT


def _stood(outcome: Outcome) -> bool:
    """True if the job stood still without the change, in the mean of all pairs."""
    before = outcome.mean(on=False, steps=outcome.metric == "steps")
    return not before if outcome.metric == "steps" else before is not None and before < HALF_PCT


def _from_to(steps_off: float | None, steps_on: float | None, work_off: float | None, work_on: float | None) -> str:
    """``182 → 311 steps/min``; by GPU work where steps are not counted."""
    if steps_off is not None and steps_on is not None:
        return f"{figure(steps_off, 3)} → {figure(steps_on, 3)} steps/min"
    if work_off is not None and work_on is not None:
        return f"GPU work {figure(work_off, 3)} → {figure(work_on, 3)} %"
    return UNMEASURED


def gain(outcome: Outcome) -> str:
    """``1.7×, 1.6 to 1.8``: a factor with its bounds, which lie as far from 1 as they are sure."""
    found = outcome.estimate
    assert found is not None
    if _stood(outcome):
        return STANDSTILL
    low, mean, high = (figure(exp(value), 2) for value in (found.low, found.mean, found.high))
    return f"{mean}×, {low} to {high}"


def _signed(value: float | None) -> str:
    return UNMEASURED if value is None else f"{value:+.0f} %".replace("-", "−")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
