"""A queueing model of one job's input pipeline: how long a step takes with other workers, CPUs, neighbours, disks, or another GPU.

After DS-Analyzer (Mohan et al., VLDB '21) a step takes as long as its slowest stage: fetching and preparing a batch, or training on it.
Here loaders also share their CPUs, with one another and with strangers. By the arrival theorem of closed queueing networks a thread that
wants a CPU meets the others as they stand without it, so it runs as many times slower as threads are there for each CPU. Loaders then want
CPUs for longer, which the model solves for. What was measured fits it first: it tells the present step exactly, and others from there.

    one = Pipeline(step=0.1, workers=1, run=0.1, gpu=0.05, gpu_wait=0.05)
    one.change(lambda one, fit: (replace(one, workers=2), fit))  # Band(factor=2.0, low=…, high=…)

All times are of one step, in any unit: seconds, or shares of a window, for the factors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb, exp, sqrt
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

LATE = 1.05  # times as long as without others, from which it is told how far threads are late (seconds of samples tell no less)
MODEL, CROWDED = 0.1, 0.2  # how far, in logarithms, a band goes beyond the variants; and beside twice as many threads as CPUs (simulated)
FULL, MORE = 0.95, 3.0  # of what the job leaves of its CPUs, taken by others; and threads of others for one that seems to be there (guess)
SURE = 0.25  # how far a fitted lateness may be off
LEAST_CPUS = 0.05  # CPUs that are left to who shares them with waits that spin
TELLING = 0.05  # of a step on CPUs, from which waits for one tell of the crowd
CLOSE = 1e-4  # of a step, between two rounds
BALANCED = 0.97  # of a step, that the busier side takes: below, neither side is the slowest all the time
LEAST_BLEND, MOST_BLEND = 1.5, 32.0  # exponents of `_slowest`: one side after the other nearly, and the slower one alone
JITTER = 12.0  # exponent of `_slowest` for two sides of like pace whose batches vary (measured: tests/experiments/whatif_pairs.py)
TURNS = 0.05  # loaders that wait for a lock in the mean, from which it is held most of the time
MANY = 128  # threads, from which their number at a CPU hardly varies
LEAST_TIME = 1e-9  # of a step: no division by nothing
ROUNDS = 24  # of a bisection, and at most of a search for a step


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
    grouped: bool = False  # the scheduler divides CPUs between sessions first: the job's threads together weigh as much as a stranger's
    quota: float | None = None  # CPUs that its control group gives it
    throttled: float = 0.0  # loaders and main thread, while the quota was used up
    disk_used: float | None = None  # 0 to 1: how far the disk delivers all it can; None: not known

    def change(self, change: Change) -> Band:
        """With what ``change`` makes of the pipeline and its fit; the band is what the model and not knowing some of it leave open."""
        found = [_factor(self, change, variant) for variant in VARIANTS]
        after, _ = change(self, _fit(self, VARIANTS[0]))
        wide = exp(MODEL + CROWDED * max(self.crowding, after.crowding))
        return Band(found[0], min(found) / wide, max(*found, min(_bound(self, after), max(found) * wide)))

    def factor(self, change: Change) -> float:
        """The likeliest of `change` alone: how many times as fast."""
        return _factor(self, change, VARIANTS[0])

    @property
    def crowding(self) -> float:
        """0 to 1: by how much more threads there may be than CPUs."""
        return min(1.0, max(0.0, (self.workers * self.threads + 1.0 + self.beside + self.others) / self.cpus - 1.0))

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
    loaders_late: float  # 0 to 1: how far a loader waits for a CPU as often as chance has it; 0: the scheduler lets it run at once
    main_late: float  # the same of the main thread
    blend: float | None  # exponent of `_slowest`; None: the slower side alone
    fixed: float  # of a step, which no stage explains
    kept: float  # CPUs that strangers keep, however many threads the job has
    waits: float  # of it, at most, waits for CPUs: fewer with fewer strangers, or more CPUs
    disk_floor: float  # of a step, in which the disk is busy with this job, and no more loaders would help
    lock_floor: float  # of a step, in which the lock is held
    hidden: float  # of the GPU's work, beside the main thread's own
    beyond: float  # of the main thread's waits for the GPU, beyond its work


Change = Callable[[Pipeline, Fit], tuple[Pipeline, Fit]]


class _Variant(NamedTuple):
    """One way to take what was not measured."""

    late: float = 0.0  # -1 to 1: how far threads wait for CPUs, against the fitted
    scales: float = 0.5  # of what a disk or lock may hold back, 0: all is told apart, 1: one at a time
    hides: float | None = None  # 0 to 1, of the GPU's work that the main thread's own may hide; None: the less it waits for it, the more
    blend: float | None = None


VARIANTS = (_Variant(), _Variant(late=-1.0, scales=0.0, hides=1.0), _Variant(late=1.0, scales=1.0, hides=0.0, blend=JITTER))


def _factor(before: Pipeline, change: Change, variant: _Variant) -> float:
    fit = _fit(before, variant)
    after, changed = change(before, fit)
    return min(_time(before, fit) / max(LEAST_TIME, _time(after, changed)), max(1.0, _bound(before, after)))


def _bound(before: Pipeline, after: Pipeline) -> float:
    """How many times as fast at most, whatever the model says: as GPU and CPUs have their work."""
    return before.step / max(after.gpu or 0.0, (after.run * after.threads + after.own) / after.cpus, LEAST_TIME)


def _fit(one: Pipeline, variant: _Variant) -> Fit:
    loads, main = _late(one.run, one.ready), _late(one.own, one.own_ready)
    crowd = _fit_crowd(one, loads, main, variant)
    by_chance = _by_chance(one, crowd, loads, main, one.step)
    overlap = max(0.0, (one.gpu or 0.0) - one.gpu_wait)
    most, least = min(overlap, one.own + one.copy + one.rest), max(0.0, overlap - one.data)
    hides = overlap / max(one.gpu or 0.0, LEAST_TIME) if variant.hides is None else variant.hides
    blend = variant.blend
    if one.workers and max(one.cycle / one.workers, one.busy, one.gpu or 0.0) < BALANCED * one.step:
        blend = _fit_blend(one.cycle / one.workers / one.step, one.busy / one.step)
    fit = Fit(
        crowd=crowd, loaders_late=_fit_late(loads, by_chance[0], variant), main_late=_fit_late(main, by_chance[1], variant), blend=blend,
        fixed=0.0, kept=_fit_kept(one, variant), waits=0.0, disk_floor=_disk_floor(one, variant), lock_floor=_lock_floor(one, variant),
        hidden=least + hides * max(0.0, most - least), beyond=max(0.0, one.gpu_wait - (one.gpu or 0.0)),
    )  # fmt: skip
    fixed = max(0.0, one.step - _time(one, fit))
    return replace(fit, fixed=fixed, waits=min(fixed, one.own_ready + one.ready / max(1, one.workers)))


def _late(run: float, ready: float) -> float:
    """How many times as long as without others."""
    return (run + ready) / run if run > LEAST_TIME else 1.0


def _fit_late(late: float, by_chance: float, variant: _Variant) -> float:
    """Half where nobody could have been late: nothing is known then."""
    known = by_chance >= LATE
    fitted, around = (min(1.0, max(0.0, (late - 1.0) / (by_chance - 1.0))), SURE) if known else (0.5, 0.5)
    return min(1.0, max(0.0, fitted + around * variant.late))


def _fit_crowd(one: Pipeline, loads: float, main: float, variant: _Variant) -> float:
    """Strangers as heavy as it takes to keep whom they keep waiting most as late as it was; no heavier than leaves the job what it used.
    Where CPUs are full, and the job hardly wants them, more may wait for what is left."""
    suffers = 0 if one.ready >= one.own_ready else 1
    late = (loads, main)[suffers] if (one.run, one.own)[suffers] >= TELLING * one.step else 1.0
    crowd = one.others * late
    if _by_chance(one, crowd, loads, main, one.step)[suffers] < late:
        crowd = _bisect(lambda guess: _by_chance(one, guess, loads, main, one.step)[suffers] - late, crowd, MORE * crowd)
    heaviest = max(one.own, one.run / max(1, one.workers))
    left = (one.cpus - one.beside) * one.step - one.run * one.threads - one.own
    if variant.late > 0.0 and one.others * one.step >= FULL * left:
        crowd *= MORE
    return min(crowd, max(0.0, left) / max(heaviest, LEAST_TIME))


def _fit_kept(one: Pipeline, variant: _Variant) -> float:
    """What they take now, where more threads of the job weigh no more; half of the CPUs at most. A guess where that is not known."""
    return min(one.others, one.cpus / 2) if one.grouped or variant.late > 0.0 else 0.0


def _by_chance(one: Pipeline, crowd: float, loads: float, main: float, step: float) -> tuple[float, float]:
    """How many times as long loaders and main thread take for their work, if threads come and go at random: by the arrival theorem each
    meets the others as they stand without it. Now they take ``loads`` and ``main`` times as long."""
    step, count = max(step, LEAST_TIME), round(one.workers * max(1.0, one.threads))
    wants = min(1.0, one.run * loads / (max(1, one.workers) * step))
    own = min(1.0, (one.own * main + (one.run * loads if not one.workers else 0.0)) / step)
    of_main = _crowded(one.cpus, count, wants, (one.beside, crowd))
    return _crowded(one.cpus, count - 1, wants, (own, one.beside, crowd)) if count else of_main, of_main


def _crowded(cpus: float, count: int, wants: float, others: tuple[float, ...]) -> float:
    """How many times as long a thread takes beside ``count`` that want a CPU for a share of the time, and so many ``others``."""
    always = sum(int(one) for one in others)
    if count > MANY or wants >= 1.0 or count <= 0:
        numbers = [(max(0, count) * wants, 1.0)]
    else:
        numbers = [(float(k), comb(count, k) * wants**k * (1.0 - wants) ** (count - k)) for k in range(count + 1)]
    for part in (one - int(one) for one in others):
        if part > 0.0:
            numbers = [(k + more, chance * odds) for k, chance in numbers for more, odds in ((0.0, 1.0 - part), (1.0, part))]
    return sum(chance * max(1.0, (1.0 + k + always) / cpus) for k, chance in numbers)


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
    """A step of the model, in which threads are as late as such a step makes them."""
    loads = main = 1.0
    step = _step_at(one, fit, loads, main)
    for _ in range(ROUNDS):
        chance = _by_chance(one, fit.crowd, loads, main, step)
        before, loads = loads, (loads + 1.0 + fit.loaders_late * (chance[0] - 1.0)) / 2
        moved, main = abs(loads - before), (main + 1.0 + fit.main_late * (chance[1] - 1.0)) / 2
        before, step = step, (step + _step_at(one, fit, loads, main)) / 2
        if moved + abs(step - before) / max(step, LEAST_TIME) < CLOSE:
            break
    return step


def _step_at(one: Pipeline, fit: Fit, loads: float, main_late: float) -> float:
    main = one.own * main_late + one.copy + one.rest
    main += max(0.0, one.gpu - min(fit.hidden, main)) + fit.beyond if one.gpu is not None else one.gpu_wait
    cycle = one.run * loads + one.disk + one.apart + one.lock
    if one.workers:
        feeders = max(cycle / one.workers, fit.disk_floor if one.disk else 0.0, fit.lock_floor if one.lock else 0.0)
        step = _slowest(feeders, main, fit.blend)
    else:
        step = main + cycle
    work, heaviest = one.run * max(1.0, one.threads) + one.own, max(one.own, one.run / max(1, one.workers))
    shared = (work + fit.crowd * heaviest) / max(one.cpus - one.beside, LEAST_CPUS)  # CPUs in fair shares, whoever is ready when
    shared = max(shared, work / max(one.cpus - one.beside - fit.kept, LEAST_CPUS) if fit.kept else 0.0)
    quota = (work + one.beside * one.step) / one.quota if one.quota else 0.0
    return max(step, one.gpu or 0.0, shared, quota) + fit.fixed
