"""A queueing model of one job's input pipeline: how long a step takes with other workers, CPUs, neighbours, disks, or another GPU.

After DS-Analyzer (Mohan et al., VLDB '21) a step takes as long as its slowest stage: fetching and preparing a batch, or training on it.
Here loaders also share their CPUs, with one another and with strangers. By the arrival theorem of closed queueing networks a thread that
wants a CPU meets the others as they are without it, so it runs as many times slower as there are threads per CPU. Loaders then want CPUs
for longer, which the model solves for. The model is first fitted to the measurements: it yields the present step exactly.

    one = Pipeline(step=0.1, workers=1, run=0.1, gpu=0.05, gpu_wait=0.05)
    one.change(lambda one, fit: (replace(one, workers=2), fit))  # Band(factor=2.0, low=…, high=…)

All times are of one step, in any unit: seconds, or shares of a window, for the factors are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import comb, exp, sqrt
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

LATE = 1.05  # slowdown from which lateness can be fitted (seconds of samples show no less)
MODEL, CROWDED = 0.1, 0.2  # margins of a band beyond the variants, in logarithms; the second with twice as many threads as CPUs (simulated)
FULL, MORE = 0.95, 3.0  # of what the job leaves of its CPUs, taken by others; and threads of others for one that seems to be there (guess)
SURE = 0.25  # how far a fitted lateness may be off
LEAST_CPUS = 0.05  # CPUs that spinning waits leave
TELLING = 0.05  # of a step on CPUs, from which waits for a CPU show the number of strangers
CLOSE = 1e-4  # of a step, between two rounds
BALANCED = 0.97  # of a step, that the busier side takes: below, neither side is the slowest all the time
LEAST_BLEND, MOST_BLEND = 1.5, 32.0  # exponents of `_slowest`: one side after the other nearly, and the slower one alone
JITTER = 12.0  # exponent of `_slowest` for two sides of like pace with varying batches (measured: tests/experiments/whatif_pairs.py)
TURNS = 0.05  # loaders that wait for a lock in the mean, from which it is held most of the time
MANY = 128  # threads, from which their number at a CPU hardly varies
LEAST_TIME = 1e-9  # of a step: no division by nothing
ROUNDS = 24  # of a bisection, and at most of a search for a step


class Band(NamedTuple):
    """Speed-up factor: the likeliest, and the bounds."""

    factor: float
    low: float
    high: float


class Pipeline(Struct, frozen=True, kw_only=True):
    """Times of one step, by activity; times of all loaders together are for one batch."""

    step: float = 1.0  # from one step to the next
    workers: int = 0  # processes that load; with 0 the main thread does
    run: float = 0.0  # loading, on a CPU
    ready: float = 0.0  # loading, ready for a CPU that another thread has
    threads: float = 1.0  # CPUs that a loader uses while it runs
    disk: float = 0.0  # loading, asleep at a disk
    apart: float = 0.0  # loading, asleep otherwise: network, timers, memory; many can do so at once
    lock: float = 0.0  # loading, asleep until another loader lets go of a lock
    own: float = 0.0  # the main thread's own work on a CPU
    own_ready: float = 0.0  # the main thread, ready for a CPU
    copy: float = 0.0  # the main thread, in copies that it waits for
    rest: float = 0.0  # the main thread, asleep otherwise, but for data
    gpu_wait: float = 0.0  # the main thread, until its GPU is done
    gpu: float | None = None  # the GPU's work; None: not measured
    cpus: float = 1.0  # that the job may use
    beside: float = 0.0  # part of ``cpus`` on which other threads of the job run or spin
    others: float = 0.0  # part of ``cpus`` taken by processes outside the job
    grouped: bool = False  # the scheduler divides CPUs between sessions first: the job's threads together weigh as much as a stranger's
    quota: float | None = None  # CPUs that its control group grants
    throttled: float = 0.0  # loaders and main thread, while the quota was used up
    disk_used: float | None = None  # 0 to 1: how far the disk delivers all it can; None: not known

    def change(self, change: Change) -> Band:
        """Predict the speed-up of ``change``. The band covers the model's error and unknown inputs."""
        found = [_factor(self, change, variant) for variant in VARIANTS]
        after, _ = change(self, _fit(self, VARIANTS[0]))
        wide = exp(MODEL + CROWDED * max(self.crowding, after.crowding))
        return Band(found[0], min(found) / wide, max(*found, min(_bound(self, after), max(found) * wide)))

    def factor(self, change: Change) -> float:
        """The likeliest speed-up factor of `change`."""
        return _factor(self, change, VARIANTS[0])

    @property
    def crowding(self) -> float:
        """Excess of threads over CPUs: 0 (none) to 1 (twice as many or more)."""
        return min(1.0, max(0.0, (self.workers * self.threads + 1.0 + self.beside + self.others) / self.cpus - 1.0))

    @property
    def cycle(self) -> float:
        """Time that all loaders together spend on one batch."""
        return self.run + self.ready + self.throttled + self.disk + self.apart + self.lock

    @property
    def busy(self) -> float:
        """Time that the main thread spends on one step, except waits for data."""
        return self.own + self.own_ready + self.copy + self.rest + self.gpu_wait

    @property
    def data(self) -> float:
        """Time per step that the main thread waits for data."""
        return max(0.0, self.step - self.busy) if self.workers else 0.0


class Fit(Struct, frozen=True):
    """Free numbers of the model, fitted to the measured step."""

    crowd: float  # threads of strangers that want a CPU, as heavy as the job's own
    loaders_late: float  # 0 to 1: a loader's waits for a CPU relative to chance; 0: the scheduler lets it run at once
    main_late: float  # like ``loaders_late``, of the main thread
    blend: float | None  # exponent of `_slowest`; None: the slower side alone
    fixed: float  # of a step, which no stage explains
    kept: float  # CPUs that strangers keep, however many threads the job has
    waits: float  # part of ``fixed`` that may be waits for CPUs: fewer with fewer strangers, or more CPUs
    disk_floor: float  # of a step, in which the disk is busy with this job, and no more loaders would help
    lock_floor: float  # of a step, in which the lock is held
    hidden: float  # of the GPU's work, in addition to the main thread's own
    beyond: float  # of the main thread's waits for the GPU, beyond its work


Change = Callable[[Pipeline, Fit], tuple[Pipeline, Fit]]


class _Variant(NamedTuple):
    """One assumption about what was not measured."""

    late: float = 0.0  # -1 to 1: how far threads wait for CPUs, against the fitted
    scales: float = 0.5  # of what a disk or lock may hold back; 0: requests are independent, 1: one at a time
    hides: float | None = None  # 0 to 1, of the GPU's work that the main thread's own may hide; None: the less it waits for it, the more
    blend: float | None = None


VARIANTS = (_Variant(), _Variant(late=-1.0, scales=0.0, hides=1.0), _Variant(late=1.0, scales=1.0, hides=0.0, blend=JITTER))


def _factor(before: Pipeline, change: Change, variant: _Variant) -> float:
    fit = _fit(before, variant)
    after, changed = change(before, fit)
    return min(_time(before, fit) / max(LEAST_TIME, _time(after, changed)), max(1.0, _bound(before, after)))


def _bound(before: Pipeline, after: Pipeline) -> float:
    """Upper bound of the speed-up, whatever the model gives: GPU and CPUs must do their work."""
    return before.step / max(after.gpu or 0.0, (after.run * after.threads + after.own) / after.cpus, LEAST_TIME)


@lru_cache(maxsize=256)
def _fit(one: Pipeline, variant: _Variant) -> Fit:
    """Returns the numbers at which the model gives the measured step; each of a dozen changes begins with them."""
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
    """Slowdown factor of a thread by waits for a CPU."""
    return (run + ready) / run if run > LEAST_TIME else 1.0


def _fit_late(late: float, by_chance: float, variant: _Variant) -> float:
    """Lateness relative to chance, 0 to 1; half if no thread could have been late, for then nothing is known."""
    known = by_chance >= LATE
    fitted, around = (min(1.0, max(0.0, (late - 1.0) / (by_chance - 1.0))), SURE) if known else (0.5, 0.5)
    return min(1.0, max(0.0, fitted + around * variant.late))


def _fit_crowd(one: Pipeline, loads: float, main: float, variant: _Variant) -> float:
    """Threads of strangers, as many as explain the lateness of the side that waits most, but no more than leaves the job what it used. If
    CPUs are full and the job hardly wants them, more strangers may wait for the rest."""
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
    """CPUs that strangers keep if more threads of the job weigh no more (sessions): what they take now, at most half of the CPUs. A guess
    if unknown."""
    return min(one.others, one.cpus / 2) if one.grouped or variant.late > 0.0 else 0.0


def _by_chance(one: Pipeline, crowd: float, loads: float, main: float, step: float) -> tuple[float, float]:
    """Slowdown factors of (loaders, main thread) if threads come and go at random: by the arrival theorem each meets the others as they are
    without it. ``loads`` and ``main``: the present factors."""
    step, count = max(step, LEAST_TIME), round(one.workers * max(1.0, one.threads))
    wants = min(1.0, one.run * loads / (max(1, one.workers) * step))
    own = min(1.0, (one.own * main + (one.run * loads if not one.workers else 0.0)) / step)
    of_main = _crowded(one.cpus, count, wants, (one.beside, crowd))
    return _crowded(one.cpus, count - 1, wants, (own, one.beside, crowd)) if count else of_main, of_main


def _crowded(cpus: float, count: int, wants: float, others: tuple[float, ...]) -> float:
    """Slowdown factor of a thread among ``count`` threads that each want a CPU for the share ``wants`` of the time, and ``others``."""
    count, always = max(0, count), 1.0 + sum(int(one) for one in others)
    parts = [part for one in others if (part := one - int(one)) > 0.0]
    if always + count + len(parts) <= cpus:
        return 1.0
    if count > MANY or wants >= 1.0:
        numbers, odds = [count * wants + more for more in range(len(parts) + 1)], [1.0]
    else:
        numbers, odds = [float(k) for k in range(count + len(parts) + 1)], _binomial(count, wants)
    slower = [max(1.0, (number + always) / cpus) for number in numbers]
    for part in parts:
        slower = [alone + part * (beside - alone) for alone, beside in pairwise(slower)]
    return sum(chance * factor for chance, factor in zip(odds, slower, strict=True))


@lru_cache(maxsize=64)
def _binomial(count: int, share: float) -> list[float]:
    """Odds that 0, 1, … ``count`` threads want a CPU, each for ``share`` of the time, which is less than 1."""
    return [comb(count, k) * share**k * (1.0 - share) ** (count - k) for k in range(count + 1)]


def _bisect(rises: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) > 0.0 else (middle, high)
    return (low + high) / 2


def _fit_blend(loaders: float, main: float) -> float:
    """Exponent of `_slowest` at which two sides, each shorter than the step, make the step."""
    return _bisect(lambda guess: 1.0 - _slowest(loaders, main, guess), LEAST_BLEND, MOST_BLEND)


def _slowest(one: float, other: float, blend: float | None) -> float:
    """Time of two stages with a short queue between: that of the slower one, and a little more if both vary."""
    most = max(one, other)
    if blend is None or most <= LEAST_TIME:
        return most
    together: float = (one / most) ** blend + (other / most) ** blend
    return most * float(together ** (1.0 / blend))


def _disk_floor(one: Pipeline, variant: _Variant) -> float:
    """Shortest step the disk allows: from its utilization if known, else from the mean number of waiting loaders (single-server queue)."""
    waiting = one.disk / max(one.step, LEAST_TIME)
    if one.disk_used is not None:
        return one.step * min(1.0, one.disk_used) * (2 * variant.scales if variant.scales < 0.5 else 1.0)
    alone, shared = min(1.0, waiting), waiting / (1.0 + waiting)
    return one.step * (2 * variant.scales * shared if variant.scales <= 0.5 else shared + (2 * variant.scales - 1) * (alone - shared))


def _lock_floor(one: Pipeline, variant: _Variant) -> float:
    """Shortest step the lock allows. It is held all the time if the loaders' turns fit together, else as a single server is (M/M/1)."""
    waiting = one.lock / max(one.step, LEAST_TIME)
    if waiting < TURNS:
        return 0.0
    by_chance = (sqrt(waiting * waiting + 4.0 * waiting) - waiting) / 2.0
    return one.step * (by_chance + variant.scales * (1.0 - by_chance))


def _time(one: Pipeline, fit: Fit) -> float:
    """Time of the model's step, with threads as late as a step of this length makes them."""
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
    shared = (work + fit.crowd * heaviest) / max(one.cpus - one.beside, LEAST_CPUS)  # fair shares, whenever threads are ready
    shared = max(shared, work / max(one.cpus - one.beside - fit.kept, LEAST_CPUS) if fit.kept else 0.0)
    quota = (work + one.beside * one.step) / one.quota if one.quota else 0.0
    return max(step, one.gpu or 0.0, shared, quota) + fit.fixed
