"""A queueing model of one job's input pipeline: how long a step takes with other workers, CPUs, neighbours, disks, or another GPU.

After DS-Analyzer (Mohan et al., VLDB '21) a step takes as long as its slowest stage: fetching and preparing a batch, or training on it.
Here loaders also share their CPUs, with one another and with strangers. By the arrival theorem of closed queueing networks a thread that
wants a CPU meets the others as they stand without it, so it runs as many times slower as threads are there for each CPU. Loaders then want
CPUs for longer, which the model solves for. What was measured fits it first: it tells the present step exactly, and others from there.

    Pipeline(step=0.1, workers=1, run=0.1, gpu=0.05, gpu_wait=0.05).predict(workers=2)  # Band(factor=2.0, low=…, high=…)

All times are of one step, in any unit: seconds, or shares of a window, for the factors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, sqrt
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

LATE = 1.02  # times as long as without others, from which a loader shares its CPUs (samples over seconds tell no less)
BALANCED = 0.97  # of a step, that the busier side takes: below, neither side is the slowest all the time
LEAST_BLEND, MOST_BLEND = 1.5, 32.0  # exponents of `_slowest`: one side after the other nearly, and the slower one alone
JITTER = 12.0  # exponent of `_slowest` for two sides of like pace whose batches vary (measured: tests/experiments/whatif_pairs.py)
TURNS = 0.05  # loaders that wait for a lock in the mean, from which it is held most of the time
MANY = 128  # threads, from which their number at a CPU hardly varies
LEAST_TIME = 1e-9  # of a step: no division by nothing
ROUNDS = 20  # of a bisection: 6 digits


class Band(NamedTuple):
    """How many times as fast: the likeliest, and what it lies between."""

    factor: float
    low: float
    high: float


class Pipeline(Struct, frozen=True, kw_only=True):
    """What one step takes, and from whom: times of all loaders together are of one batch."""

    step: float = 1.0  # from one step to the next
    workers: int = 0  # processes that load; with 0 the main thread does
    run: float = 0.0  # loading, on a CPU
    ready: float = 0.0  # loading, ready for a CPU that somebody else has
    threads: float = 1.0  # CPUs that a loader uses while it runs
    disk: float = 0.0  # loading, asleep at a disk
    apart: float = 0.0  # loading, asleep otherwise: network, timers, memory; many can do so at once
    lock: float = 0.0  # loading, asleep until another loader lets go of a lock
    own: float = 0.0  # the main thread's own work on a CPU
    own_ready: float = 0.0  # the main thread, ready for a CPU
    copy: float = 0.0  # the main thread, in copies that it waits for
    rest: float = 0.0  # the main thread, asleep otherwise, but for data
    gpu_wait: float = 0.0  # the main thread, until its GPU is through
    gpu: float | None = None  # the GPU's work; None: not measured
    cpus: float = 1.0  # that the job may use
    beside: float = 0.0  # of these, on which other threads of the job run or spin
    others: float = 0.0  # of these, taken by processes outside the job
    quota: float | None = None  # CPUs that its control group gives it
    throttled: float = 0.0  # loaders and main thread, while the quota was used up
    disk_used: float | None = None  # 0 to 1: how far the disk delivers all it can; None: not known

    def predict(self, workers: int) -> Band:
        """With another number of worker processes."""
        return self.change(lambda one, fit: (replace(one, workers=workers), fit))

    def change(self, change: Change) -> Band:
        """With what ``change`` makes of the pipeline and its fit; the band is what not knowing some of it leaves open."""
        found = [_factor(self, change, variant) for variant in VARIANTS]
        return Band(found[0], min(found), max(found))

    def factor(self, change: Change) -> float:
        """The likeliest of `change` alone: how many times as fast."""
        return _factor(self, change, VARIANTS[0])

    @property
    def cycle(self) -> float:
        """What all loaders together spend on one batch."""
        return self.run + self.ready + self.throttled + self.disk + self.apart + self.lock

    @property
    def busy(self) -> float:
        """What the main thread spends on one step, but for waiting for data."""
        return self.own + self.own_ready + self.copy + self.rest + self.gpu_wait

    @property
    def data(self) -> float:
        """What the main thread waits for data."""
        return max(0.0, self.step - self.busy) if self.workers else 0.0


class Fit(Struct, frozen=True):
    """What the measured step tells of the model's free numbers."""

    crowd: float  # threads of strangers that want a CPU, as heavy as the job's own
    chance: float  # 0 to 1: how far threads meet at a CPU by chance, 0: only where there are more than CPUs
    eager: float  # how far the main thread waits for a CPU, against loaders
    blend: float | None  # exponent of `_slowest`; None: the slower side alone
    fixed: float  # of a step, which no stage explains
    disk_floor: float  # of a step, in which the disk is busy with this job, and no more loaders would help
    lock_floor: float  # of a step, in which the lock is held
    hidden: float  # of the GPU's work, beside the main thread's own


Change = Callable[[Pipeline, Fit], tuple[Pipeline, Fit]]


class _Variant(NamedTuple):
    """One way to take what was not measured."""

    chance: float | None = None  # None: as fitted, or half
    scales: float = 0.5  # of what a disk or lock may hold back, 0: all is told apart, 1: one at a time
    hides: float = 0.5  # between the least and the most of the GPU's work that the main thread's own may hide
    blend: float | None = None


VARIANTS = (_Variant(), _Variant(chance=0.0, scales=0.0, hides=1.0), _Variant(chance=1.0, scales=1.0, hides=0.0, blend=JITTER))


def _factor(before: Pipeline, change: Change, variant: _Variant) -> float:
    fit = _fit(before, variant)
    after, changed = change(before, fit)
    now, then = _time(before, fit), _time(after, changed)
    least = max(after.gpu or 0.0, (after.run * after.threads + after.own) / after.cpus, LEAST_TIME)  # whatever the model says
    return min(now / max(LEAST_TIME, then), max(1.0, before.step / least))


def _fit(one: Pipeline, variant: _Variant) -> Fit:
    late = _late(one.run + one.own * (not one.workers), one.ready + one.own_ready * (not one.workers))
    crowd, chance = _fit_crowd(one, late, variant)
    eager = min(2.0, max(0.0, (_late(one.own, one.own_ready) - 1.0) / (late - 1.0))) if late > LATE else 1.0
    overlap = max(0.0, (one.gpu or 0.0) - one.gpu_wait)
    most, least = min(overlap, one.own + one.copy + one.rest), max(0.0, overlap - one.data)
    fit = Fit(
        crowd=crowd, chance=chance, eager=eager, blend=None, fixed=0.0, disk_floor=_disk_floor(one, variant),
        lock_floor=_lock_floor(one, variant), hidden=least + variant.hides * max(0.0, most - least),
    )  # fmt: skip
    blend = variant.blend
    if one.workers and max(one.cycle / one.workers, one.busy) < BALANCED * one.step:
        blend = _fit_blend(one.cycle / one.workers / one.step, one.busy / one.step)
    fit = replace(fit, blend=blend)
    return replace(fit, fixed=max(0.0, one.step - _time(one, fit)))


def _late(run: float, ready: float) -> float:
    return (run + ready) / run if run > LEAST_TIME else 1.0


def _fit_crowd(one: Pipeline, late: float, variant: _Variant) -> tuple[float, float]:
    """Strangers as heavy as it takes to keep loaders waiting as long as they did, and how far these meet by chance."""
    crowd, chance = one.others * late, variant.chance
    least, most = _lateness(one, late, crowd, one.step)
    if late > most:  # they weigh more than the job's threads do
        crowd = _bisect(lambda guess: _lateness(one, late, guess, one.step)[1] - late, crowd, crowd + late * one.cpus)
        return crowd, 1.0 if chance is None else chance
    if late < least:  # they weigh less, as with nice
        crowd = _bisect(lambda guess: _lateness(one, late, guess, one.step)[0] - late, 0.0, crowd)
        return crowd, 0.0 if chance is None else chance
    if chance is None:
        chance = (late - least) / (most - least) if most > LATE * least else 0.5
    return crowd, chance


def _lateness(one: Pipeline, late: float, crowd: float, step: float) -> tuple[float, float]:
    """How many times as long a loader's work takes, if threads take turns as well as can be, and if they meet by chance."""
    step = max(step, LEAST_TIME)
    main = min(1.0, one.own * (late if not one.workers else 1.0) / step)
    if not one.workers:
        return _crowded(one.cpus, 0, 0.0, main, [one.beside], crowd)
    count = max(1, round(one.workers * max(1.0, one.threads)))
    wants = min(1.0, one.run * late / (one.workers * step))
    return _crowded(one.cpus, count - 1, wants, wants, [main, one.beside], crowd)


def _crowded(cpus: float, count: int, wants: float, own: float, singles: list[float], crowd: float) -> tuple[float, float]:
    """``count`` threads that want a CPU for a share of the time beside one more, which does so for ``own`` of it."""
    always = sum(int(one) for one in (*singles, crowd))
    parts = [one - int(one) for one in (*singles, crowd)]
    least = max(1.0, (count * wants + own + sum(singles) + crowd) / cpus)
    if count > MANY or wants >= 1.0:
        numbers = {count * wants: 1.0}
    else:
        numbers = {float(k): comb(count, k) * wants**k * (1.0 - wants) ** (count - k) for k in range(count + 1)}
    for part in parts:
        if part > 0.0:
            met: dict[float, float] = {}
            for k, chance in numbers.items():
                met[k] = met.get(k, 0.0) + chance * (1.0 - part)
                met[k + 1.0] = met.get(k + 1.0, 0.0) + chance * part
            numbers = met
    most = sum(chance * max(1.0, (1.0 + k + always) / cpus) for k, chance in numbers.items())
    return least, max(least, most)


def _bisect(rises: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) > 0.0 else (middle, high)
    return (low + high) / 2


def _fit_blend(loaders: float, main: float) -> float:
    """The exponent with which two sides, neither of which takes all of the step, make it."""
    return _bisect(lambda guess: 1.0 - _slowest(loaders, main, guess), LEAST_BLEND, MOST_BLEND)


def _slowest(one: float, other: float, blend: float | None) -> float:
    """Of two stages with a short queue between: the slower one, and a little more where both vary."""
    most = max(one, other)
    if blend is None or most <= LEAST_TIME:
        return most
    together: float = (one / most) ** blend + (other / most) ** blend
    return most * float(together ** (1.0 / blend))


def _disk_floor(one: Pipeline, variant: _Variant) -> float:
    """By how much of what it can the disk delivers; else by how many loaders wait at it in the mean, as at a single server."""
    waiting = one.disk / max(one.step, LEAST_TIME)
    if one.disk_used is not None:
        return one.step * min(1.0, one.disk_used) * (2 * variant.scales if variant.scales < 0.5 else 1.0)
    alone, shared = min(1.0, waiting), waiting / (1.0 + waiting)
    return one.step * (2 * variant.scales * shared if variant.scales <= 0.5 else shared + (2 * variant.scales - 1) * (alone - shared))


def _lock_floor(one: Pipeline, variant: _Variant) -> float:
    """Where loaders wait for a lock it is held all the time, if their turns fit together; by chance as a single server is (M/M/1)."""
    waiting = one.lock / max(one.step, LEAST_TIME)
    if waiting < TURNS:
        return 0.0
    by_chance = (sqrt(waiting * waiting + 4.0 * waiting) - waiting) / 2.0
    return one.step * (by_chance + variant.scales * (1.0 - by_chance))


def _time(one: Pipeline, fit: Fit) -> float:
    """A step of the model: the lateness of loaders that makes a step in which they are as late."""
    most = _crowded(one.cpus, round(max(1, one.workers) * max(1.0, one.threads)), 1.0, 1.0, [1.0, one.beside], fit.crowd)[1]

    def over(late: float) -> float:
        least, chance = _lateness(one, late, fit.crowd, _step_at(one, fit, late))
        return late - (least + fit.chance * (chance - least))

    return _step_at(one, fit, _bisect(over, 1.0, max(1.0, most)))


def _step_at(one: Pipeline, fit: Fit, late: float) -> float:
    main = one.own * (1.0 + fit.eager * (late - 1.0)) + one.copy + one.rest
    hidden = min(fit.hidden, main)
    main += max(0.0, (one.gpu - hidden) if one.gpu is not None else one.gpu_wait)
    main += max(0.0, one.gpu_wait - one.gpu) if one.gpu is not None else 0.0
    cycle = one.run * late + one.disk + one.apart + one.lock
    if one.workers:
        loaders = max(cycle / one.workers, fit.disk_floor if one.disk else 0.0, fit.lock_floor if one.lock else 0.0)
        step = _slowest(loaders, main, fit.blend)
    else:
        step = main + cycle
    work = one.run * max(1.0, one.threads) + one.own + one.beside * one.step
    return max(step, one.gpu or 0.0, work / one.quota if one.quota else 0.0) + fit.fixed
