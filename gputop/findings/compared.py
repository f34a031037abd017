"""Whether a job is slower than it was: runs before and after a change, compared by how long a step takes, with an interval.

The interval stands on what runs differ by, not on the number of steps: within a run by its stretches, between runs by all runs of both
sides (`intervals.between_runs`).

A step's time is split by the ledger into what the GPU works and what each cause takes from it. The parts sum to the whole change. What a
change of the program cannot cause, the machine's noise, is a part as well: neighbours, clocks, time that the hypervisor gave to others. If
the answer without that part is another one, it is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, log
from statistics import fmean
from typing import Annotated

from msgspec import Meta, Struct, field

from gputop.findings.explanation import SCHEMA
from gputop.findings.intervals import Level, between_runs
from gputop.findings.verdict import Word
from gputop.model.ranges import Count, Number, PerSecond, Seconds

SLOWER, NOT_SLOWER, UNDECIDED = ANSWERS = ("slower", "not-slower", "undecided")
LEAST_STRETCHES = 3  # of a run: of fewer no spread within it is known
LEAST_STEPS = 20  # of a run: fewer are known to one or two, that is to 5 % and worse
UNLIKE_TIMES = 2.0  # times as long as the shortest run: a longer one is told, for a warm-up weighs less in it (a choice)
TRIFLE_PCT = 0.5  # per cent of a step's time: noise of less is not named
WORK = "work"  # the part of a step in which its GPU works
NOISE_CAUSES = ("cpu-contention", "gpu-shared")  # causes that are other programs, always
SHARED_CAUSES = ("disk-io", "memory-pressure", "network-io")  # causes that are, where an incident of theirs has culprits
CLOCK_CAUSE = "gpu-throttle"
NEIGHBOURS, CLOCKS, STEAL = NOISES = ("neighbours", "clocks", "steal")
_MOST_NAMED = 3  # neighbours that a text names

_Answer = Annotated[str, Meta(pattern=rf"\A({'|'.join(ANSWERS)})\Z")]
_MANY = Meta(max_length=256)


class JobRun(Struct):
    """One program of one run, as it was measured."""

    per_s: list[float] = field(default_factory=list)  # steps a second, of one stretch after the other; pauses are left out
    blur: float = 0.0  # standard deviation, relative, by which the clock of the steps may be wrong all the time
    steps: float = inf
    lost: dict[str, float] | None = None  # cause -> lost share of its GPUs' time, pauses apart; None if no GPU is measured
    why_not: str = ""  # the reason why its pace is not known

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return 1.0 / fmean(self.per_s)

    @property
    def level(self) -> Level:
        """The logarithm of a step's time, with the error that its stretches show, and the clock's."""
        mean, count = fmean(self.per_s), len(self.per_s)
        within2 = sum((one / mean - 1.0) ** 2 for one in self.per_s) / (count - 1) / count
        return Level(log(self.step_s), within2 + self.blur**2, count - 1.0)

    def missing(self) -> str:
        """The reason why its pace is not known; empty if it is."""
        if self.why_not:
            return self.why_not
        if len(self.per_s) < LEAST_STRETCHES or self.steps < LEAST_STEPS or min(self.per_s) < 0.0 or not sum(self.per_s):
            return "too few steps: record for longer"
        return ""


class MeasuredRun(Struct):
    """One recording, as it was measured."""

    path: str
    jobs: dict[str, JobRun]  # by the program's name, which ranks share
    gpus: tuple[str, ...] = ()  # names of the models
    host: str = ""
    cpus: int = 0
    clock_mhz: float | None = None  # of the SMs, while they worked
    stolen: float | None = None  # share of the CPUs' busy time that the hypervisor gave to others
    neighbours: dict[str, list[str]] = field(default_factory=dict)  # cause -> programs that its incidents blame


class StepPart(Struct, frozen=True):
    """Time of a part of a step, before and after."""

    part: Word  # a cause that its GPU waited for, or ``work``
    before_ms: Number
    after_ms: Number
    change_pct: Number  # of the step before


class MachineNoise(Struct, frozen=True):
    """Time that the machine, and not the program, added to a step."""

    kind: Word  # a word of `NOISES`
    change_pct: Number  # of the step before; negative: the runs before were disturbed more
    text: str


class JobChange(Struct, frozen=True):
    """Change of a job's step, and its parts."""

    name: str
    answer: _Answer | None  # None: no limit was asked for
    reason: str  # of an answer that is undecided; else empty
    change_pct: Number | None  # how much longer a step takes; None: not known
    low_pct: Number | None  # it lies between these, in 95 of 100 cases
    high_pct: Number | None
    before_ms: Number | None  # a step's time
    after_ms: Number | None
    parts: Annotated[list[StepPart], _MANY]  # most change first; empty where no GPU is measured
    noise: Annotated[list[MachineNoise], _MANY]


class RunPace(Struct, frozen=True):
    """The pace of one program in one recording."""

    path: str
    side: Annotated[str, Meta(pattern=r"\A(before|after)\Z")]
    name: str
    steps_per_s: PerSecond | None
    stretches: Count  # that its spread is known from
    reason: str  # why the pace is not known; else empty


class Slower(Struct, frozen=True):
    """Output of `gputop diff --json` for several runs, or with ``--fail-if-slower``."""

    schema: int
    answer: _Answer | None  # the worst of all jobs; None: no limit was asked for
    reason: str
    limit_pct: Number | None
    jobs: Annotated[list[JobChange], _MANY]
    runs: Annotated[list[RunPace], _MANY]
    differs: Annotated[list[str], _MANY]  # what else is not the same: GPUs, host, CPUs


def compared(before: Sequence[MeasuredRun], after: Sequence[MeasuredRun], limit_pct: float | None) -> Slower:
    """The comparison of all runs of two sides, each at least one."""
    sides = (before, after)
    pairs = _pairs(sides)
    differs = [*(f"program: {old} before, {new} after" for old, new in pairs.values() if old != new), *_differences(before, after)]
    foreign = "they ran on different GPUs" if len({run.gpus for side in sides for run in side}) > 1 else ""
    jobs = [_change(name, [[run.jobs[own] for run in side] for side, own in zip(sides, owns, strict=True)], sides, limit_pct, foreign)
            for name, owns in pairs.items()]  # fmt: skip
    answers = [one.answer for one in jobs]
    worst = next((word for word in (SLOWER, UNDECIDED, NOT_SLOWER) if word in answers), UNDECIDED)
    reason = next((one.reason for one in jobs if one.answer == worst), "") if jobs else "no program trains in all of these recordings"
    paces = [RunPace(run.path, word, name, _rounded(None if job.missing() else 1.0 / job.step_s), len(job.per_s), job.missing())
             for word, side in zip(("before", "after"), sides, strict=True) for run in side for name, job in run.jobs.items()]  # fmt: skip
    return Slower(SCHEMA, None if limit_pct is None else worst, reason, limit_pct, jobs, paces, differs)


def _pairs(sides: Sequence[Sequence[MeasuredRun]]) -> dict[str, tuple[str, str]]:
    """Name -> its names before and after, of each program that trains in all runs. One that is the only one may have been renamed."""
    shared = [set.intersection(*({*run.jobs} for run in side)) for side in sides]
    if both := shared[0] & shared[1]:
        return {name: (name, name) for name in sorted(both)}
    if len(shared[0]) == len(shared[1]) == 1:
        [old], [new] = shared
        return {new: (old, new)}
    return {}


def _change(
    name: str, jobs: Sequence[Sequence[JobRun]], sides: Sequence[Sequence[MeasuredRun]], limit_pct: float | None, foreign: str
) -> JobChange:
    missing = [(run.path, why) for side, own in zip(sides, jobs, strict=True) for run, job in zip(side, own, strict=True)
               if (why := job.missing())]  # fmt: skip
    if missing:
        path, why = missing[0]
        return JobChange(name, None if limit_pct is None else UNDECIDED, f"{path}: {why}", None, None, None, None, None, [], [])
    before, after = ([job.level for job in side] for side in jobs)
    found = between_runs(before, after)
    mean, low, high = found.pct, found.low_pct, found.high_pct
    before_s, after_s = (fmean(job.step_s for job in side) for side in jobs)
    parts = _parts(jobs, before_s)
    noise = _noise(parts, sides, mean)
    disturbed = sum(one.change_pct for one in noise)
    answer, reason = (None, "") if limit_pct is None else _answer(limit_pct, low, high, disturbed, noise)
    if answer is not None and foreign:
        answer, reason = UNDECIDED, foreign
    return JobChange(
        name, answer, reason, round(mean, 2), round(low, 2), round(high, 2), round(1e3 * before_s, 3), round(1e3 * after_s, 3), parts, noise
    )  # fmt: skip


def _parts(jobs: Sequence[Sequence[JobRun]], before_s: float) -> list[StepPart]:
    """The parts of a step; empty if some run has no ledger."""
    if any(job.lost is None for side in jobs for job in side):
        return []
    causes = {cause for side in jobs for job in side for cause in job.lost or {}}
    found = []
    for part in (*causes, WORK):
        old, new = (1e3 * fmean(_part_s(job, part) for job in side) for side in jobs)
        found.append(StepPart(part, round(old, 3), round(new, 3), round((new - old) / (10.0 * before_s), 2)))
    return sorted(found, key=lambda one: (-abs(one.change_pct), one.part))


def _part_s(job: JobRun, part: str) -> float:
    lost = job.lost or {}
    return job.step_s * (max(0.0, 1.0 - sum(lost.values())) if part == WORK else lost.get(part, 0.0))


def _noise(parts: Sequence[StepPart], sides: Sequence[Sequence[MeasuredRun]], whole_pct: float) -> list[MachineNoise]:
    """Parts that the machine added or took, as far as they are named, most first. Of a step without parts the whole change, ``whole_pct``,
    may be clocks' or stolen time's."""
    by_part = {one.part: one.change_pct for one in parts}
    blamed = {cause: names for side in sides for run in side for cause, names in run.neighbours.items() if names}
    causes = [cause for cause in by_part if cause in NOISE_CAUSES or (cause in SHARED_CAUSES and cause in blamed)]
    neighbours = sum(by_part[cause] for cause in causes)
    who = list(dict.fromkeys(name for cause in causes for name in blamed.get(cause, ())))[:_MOST_NAMED]
    found = [MachineNoise(NEIGHBOURS, round(neighbours, 2), f"{', '.join(causes)}{' by ' if who else ''}{', '.join(who)}")]
    clocks = [_mean(run.clock_mhz for run in side) for side in sides]
    held = by_part.get(CLOCK_CAUSE, 0.0)
    if clocks[0] and clocks[1]:
        held += _within(100.0 * (clocks[0] / clocks[1] - 1.0), by_part.get(WORK, 0.0) if parts else whole_pct)
    words = "" if not (clocks[0] and clocks[1]) else f"SM clock {clocks[0]:.0f} MHz before, {clocks[1]:.0f} MHz after"
    found.append(MachineNoise(CLOCKS, round(held, 2), words or "clocks held down"))
    stolen = [_mean(run.stolen for run in side) for side in sides]
    if stolen[0] is not None and stolen[1] is not None and stolen[1] < 1.0:
        longer = 100.0 * ((1.0 - stolen[0]) / (1.0 - stolen[1]) - 1.0)  # what a CPU computes takes so much longer
        waits = sum(change for part, change in by_part.items() if part not in (WORK, CLOCK_CAUSE, *causes)) if parts else whole_pct - held
        text = f"the hypervisor took {100 * stolen[0]:.1f} % of busy CPUs before, {100 * stolen[1]:.1f} % after"
        found.append(MachineNoise(STEAL, round(_within(longer, waits), 2), text))
    return sorted((one for one in found if abs(one.change_pct) >= TRIFLE_PCT), key=lambda one: -abs(one.change_pct))


def _within(cause: float, effect: float) -> float:
    """Part of an effect that a cause of the same direction explains at most."""
    return 0.0 if cause * effect <= 0.0 else min(cause, effect) if cause > 0.0 else max(cause, effect)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return fmean(known) if known else None


def _answer(limit: float, low: float, high: float, disturbed: float, noise: Sequence[MachineNoise]) -> tuple[str, str]:
    """(answer, reason if it is undecided): what the interval shows, with and without the machine's noise."""
    seen, quiet = _side(limit, low, high), _side(limit, low - disturbed, high - disturbed)
    named = "; ".join(f"{one.kind} {one.change_pct:+.1f} % ({one.text})" for one in noise)
    if seen != quiet:
        where = "the runs after" if disturbed > 0.0 else "the runs before"
        return UNDECIDED, f"the machine disturbed {where}: {named}"
    if seen == UNDECIDED:
        return UNDECIDED, f"{limit:g} % lies within the interval: compare more runs a side (A1 A2 A3 -- B1 B2 B3), or longer ones"
    return seen, ""


def _side(limit: float, low: float, high: float) -> str:
    return SLOWER if low > limit else NOT_SLOWER if high <= limit else UNDECIDED


def _differences(before: Sequence[MeasuredRun], after: Sequence[MeasuredRun]) -> Iterable[str]:
    """Facts besides the program that are not the same on both sides."""
    kinds: Mapping[str, list[set[object]]] = {
        "GPUs": [{", ".join(run.gpus) for run in side} for side in (before, after)],
        "host": [{run.host for run in side} for side in (before, after)],
        "CPUs": [{run.cpus for run in side} for side in (before, after)],
    }
    for kind, (old, new) in kinds.items():
        if old != new:
            was, now = (" / ".join(sorted(str(one) or "none" for one in side)) for side in (old, new))
            yield f"{kind}: {was} before, {now} after"
    seconds = [[one.steps * one.step_s for run in side for one in run.jobs.values() if not one.missing()] for side in (before, after)]
    if all(seconds) and UNLIKE_TIMES * min(map(min, seconds)) < max(map(max, seconds)) < inf:
        was, now = (" to ".join(dict.fromkeys((f"{min(side):.0f}", f"{max(side):.0f}"))) for side in seconds)
        yield f"seconds of steps: {was} before, {now} after; a warm-up weighs more in the shorter ones, and --from leaves it out"


def _rounded(value: Seconds | None) -> float | None:
    return None if value is None else round(value, 4)
