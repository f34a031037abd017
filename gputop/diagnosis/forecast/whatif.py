"""Predictions of changes, and their assumptions: other numbers of workers, no strangers, no disk waits, more CPUs, a faster GPU. Of
workers it is only spoken where the program has such, or may have (`gputop.diagnosis.causes.advice`).

`reading_of` takes from a window's facts what `gputop.diagnosis.forecast.pipeline` needs, in shares of the window. A factor needs no step
clock, for the same work makes a step before and after. `Readings` keeps some windows of each trainer and cause; `options` compares changes.

A loader alone: make a `gputop.diagnosis.forecast.pipeline.Pipeline` of measured seconds a batch; `Pipeline.change` gives a `Band`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from math import exp, inf, log, sqrt
from statistics import fmean, median, stdev

from msgspec import Struct
from msgspec.structs import replace

from gputop.diagnosis.causes.advice import LOADING, numbers_in
from gputop.diagnosis.facts import waits
from gputop.diagnosis.facts.capacity import beside, capacity
from gputop.diagnosis.facts.facts import Capacity
from gputop.diagnosis.facts.feeders import at_work, threads_at_work
from gputop.diagnosis.facts.kinds import Kind, kind_of
from gputop.diagnosis.facts.proc import ProcFacts
from gputop.diagnosis.forecast.pipeline import LEAST_TIME, Band, Fit, Pipeline
from gputop.diagnosis.graph.job import WalkedFacts, WalkedJob
from gputop.findings.outlook import NOTHING
from gputop.findings.policy import AT_WORK, LAUNCH_COST_S, TICK_SLACK_NS, WINDOW_NS
from gputop.findings.sentence import filled
from gputop.findings.verdict import Culprit, Fix, WhatIf
from gputop.system.text import counted

MOST_READINGS, MOST_KEPT, MOST_COMPARED = 12, 32, 6  # windows of a trainer and cause (30 s); trainers and causes; windows for a spread
WORTH = 0.02  # share of a step from which a prediction without that part is worthwhile
LIKE_BEST = 0.98  # of the best factor, at which no more workers are added
FASTER = 2.0  # times as fast as this GPU
MOVED = (1.0, 0.9, 0.6)  # share of the main thread's work, less launches, that workers can do: at most, likely, at least (guess)
LINK_SHARE = 0.8  # of the link's speed that copies from pinned memory reach (bandwidthTest on PCIe 4 and 5: 0.8 to 0.9)
ONE_WINDOW = 0.1  # assumed deviation, in logarithms, of a single window from the mean
SIGMAS = 2.0  # standard errors on each side of a band
NUMBERS, MAIN_WORK, FASTER_GPU = "other numbers of workers", "the main thread's work in the workers", "a faster GPU"
ON_GPU = "the optimizer on the GPU"
SAME = {
    "workers": ("too-few-workers", "slow-transform", "worker-oversubscription", "main-thread-preprocessing"),
    "strangers": ("cpu-contention", "disk-io", "memory-pressure"),
    "disk": ("disk-io",), "cpus": ("affinity",), "quota": ("cgroup-throttle",), "copy": ("h2d-transfer", "pcie-degraded", "numa-remote"),
    "main": ("main-thread-preprocessing", "host-optimizer"), "gpu": (),
}  # fmt: skip
"""Kind of change -> causes with a complete removal that brings at least as much: their bound also holds for the change."""


class Around(Struct, frozen=True):
    """The surroundings of a pipeline."""

    host_cpus: int
    others_outside: float  # CPUs taken by other processes among those that the job may not use
    takers: dict[int, float]  # pid outside the job -> CPUs that it takes from the job's
    memory: float  # the loaders' time asleep for pages that memory has no room for
    moves: float  # the main thread's own work except launches of kernels
    main_disk: float  # the main thread, at a disk
    main_apart: float  # the main thread, asleep for the network, a timer or a program: where it loads itself, for its data
    pinned: float | None  # time of its copies if they were from pinned memory; None: unknown
    unknown: str  # why other numbers of workers cannot be predicted; empty if they can
    counts_launches: bool = True  # False: ``moves`` contains most launches, too, for samples only estimate their number
    kind: Kind = Kind.TORCH
    served: bool = False  # a daemon or another host serves its files: what a page cache would bring is not known


class Reading(Struct, frozen=True):
    """The data of one window."""

    pipeline: Pipeline  # in shares of the window
    around: Around


class Readings:
    """The last windows of each trainer and cause."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str], deque[Reading]] = {}
        self._noted: dict[int, int] = {}  # trainer -> t_ns of its last reading
        self._told: tuple[object, list[WhatIf]] = (None, [])  # (the last question, its answer)

    def note(self, job: WalkedJob, facts: WalkedFacts, cause: str) -> None:
        """Keep the window, if it does not overlap the last one that was kept."""
        pid = job.trainer.pid
        if not facts.settled or facts.t_ns - self._noted.get(pid, 0) < WINDOW_NS - TICK_SLACK_NS:
            return
        self._noted[pid] = facts.t_ns
        kept = self._kept.pop((pid, cause), None) or deque[Reading](maxlen=MOST_READINGS)
        kept.append(reading_of(job, facts))
        self._kept[pid, cause] = kept  # the newest last
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def of(self, pid: int | None, cause: str) -> list[Reading]:
        """Windows of a trainer in which a cause stood, else the windows of its latest cause."""
        own = [key for key in self._kept if key[0] == pid]
        key = next((key for key in own if key[1] == cause), own[-1] if own else None)
        return list(self._kept[key]) if key is not None else []

    def options(
        self, pid: int | None, cause: str, culprits: Sequence[Culprit], bound: float | None, fixes: Iterable[Fix] = ()
    ) -> list[WhatIf]:
        """The module's `options` for a trainer, by the windows of `of`; the last answer is kept, for screens ask often."""
        kept = self.of(pid, cause)
        advised = numbers_in(fixes, kept[-1].around.kind) if kept else frozenset[int]()
        asked = pid, cause, kept, tuple(one.pid for one in culprits), bound, advised
        if self._told[0] != asked:
            self._told = asked, options(kept, cause, culprits, bound, advised)
        return self._told[1]


def reading_of(job: WalkedJob, facts: WalkedFacts) -> Reading:
    """The reading of a job's window, once its states are set."""
    trainer, cpus, main = job.trainer, capacity(job, facts), job.trainer.state.fractions
    workers, own = at_work(job), main.get("computing", 0.0)
    one = Pipeline(
        workers=len(workers), own=own, own_ready=main.get("runnable", 0.0), copy=main.get("transfer", 0.0),
        gpu_wait=main.get("waiting-gpu", 0.0), gpu=None if job.idle is None else 1.0 - job.idle,
        rest=sum(main.get(word, 0.0) for word in ("blocked", "disk", "memory", "stopped")), cpus=float(max(1, len(cpus.allowed))),
        beside=max(0.0, trainer.cores - own) + job.cpus.helpers, others=cpus.taken + facts.watching, quota=job.limits.quota_cpus,
        grouped=facts.host.autogroup, throttled=main.get("throttled", 0.0), disk_used=_disk_used(job),
    )  # fmt: skip
    one, memory = _loading(one, workers) if workers else (_with_helpers(one, trainer), main.get("memory", 0.0))
    around = Around(
        host_cpus=max(1, len(cpus.host)), others_outside=max(0.0, len(cpus.host - cpus.allowed) - cpus.idle_outside),
        takers=_takers(job, facts, cpus), memory=memory, moves=max(0.0, own - (job.cuda.launches_per_s or 0.0) * LAUNCH_COST_S),
        main_disk=main.get("disk", 0.0), main_apart=_blocked(trainer, waits.NETWORK, waits.TIMER, waits.PIPE, waits.CHILD),
        pinned=_pinned(job), unknown=_unknown(job), counts_launches=job.cuda.calls is not None and job.cuda.launches_per_s is not None,
        kind=kind_of(job, facts), served=bool(facts.file_servers) or any(one.reads_remotely for one in (trainer, *job.workers)),
    )  # fmt: skip
    return Reading(one, around)


def _blocked(proc: ProcFacts, *kinds: str) -> float:
    """Share of the window in which the process was blocked in these kinds of wait."""
    slept = proc.state.waits
    part = sum(slept.get(kind, 0.0) for kind in kinds) / max(sum(slept.values()), LEAST_TIME)
    return proc.state.fractions.get("blocked", 0.0) * part


def _with_helpers(one: Pipeline, trainer: ProcFacts) -> Pipeline:
    """The pipeline, with the main thread's waits for its own threads or programs counted as their work, or as their waits for a CPU."""
    ran, waited = trainer.others_run + trainer.programs[0], trainer.others_runnable + trainer.programs[1]
    if ran + waited < AT_WORK:
        return one
    slept = min(one.rest, _blocked(trainer, waits.LOCK, waits.PIPE, waits.CHILD))
    on_cpu = slept * ran / (ran + waited)
    return replace(one, own=one.own + on_cpu, own_ready=one.own_ready + slept - on_cpu, rest=one.rest - slept)


def _loading(one: Pipeline, workers: Sequence[ProcFacts]) -> tuple[Pipeline, float]:
    """(the pipeline with the workers' times, share of the window in which they waited for memory)."""
    run = used = lock = apart = 0.0
    for worker in workers:
        found = worker.state.fractions
        running, blocked, more = found.get("running", 0.0), found.get("blocked", 0.0), worker.others_run + worker.programs[0]
        for_own = min(blocked, more)  # asleep until threads or programs of its own are through
        locked = max(0.0, _blocked(worker, waits.LOCK) - for_own)
        run, used, lock = run + running + for_own, used + running + more, lock + locked
        apart += found.get("stopped", 0.0) + blocked - for_own - locked

    def total(word: str) -> float:
        return sum(worker.state.fractions.get(word, 0.0) for worker in workers)

    memory, threads = total("memory"), max(1.0, used / run) if run >= WORTH else 1.0
    return replace(
        one, run=run, ready=total("runnable"), throttled=one.throttled + total("throttled"), disk=total("disk"), apart=apart + memory,
        lock=lock, threads=threads,
    ), memory  # fmt: skip


def _disk_used(job: WalkedJob) -> float | None:
    """Used share of the reads that the workers' cgroup allows, 0 to 1; None without a limit."""
    limit = job.limits.read_limit.bytes_per_s if job.limits.read_limit is not None else None
    return min(1.0, sum(worker.read_bytes_per_s or 0.0 for worker in job.workers) / limit) if limit else None


def _takers(job: WalkedJob, facts: WalkedFacts, cpus: Capacity) -> dict[int, float]:
    """Pid of a stranger, or of another training's process, -> CPUs that it takes from the job's."""
    own, found = job.ranks.kin | {job.trainer.pid}, {taker.pid: taker.cores for taker in beside(job, facts, cpus.allowed)}
    others = (proc for other in facts.jobs if other.trainer.pid not in own for proc in (other.trainer, *other.workers))
    return found | {proc.pid: proc.cores for proc in others}


def _pinned(job: WalkedJob) -> float | None:
    """Share of the window that the copies to the GPU would take at the link's speed; None if unknown."""
    links = [link for gpu in job.gpus if (link := gpu.link_bytes_per_s)]
    copied = job.cuda.calls.copy_bytes_per_s if job.cuda.calls is not None else None
    return copied / (LINK_SHARE * min(links)) if links and copied else None


def _unknown(job: WalkedJob) -> str:
    if job.workers:
        return "its workers are started again and again" if job.loader.births else ""
    if job.feeders.pids:
        return "its loaders are no workers of its own"
    return "threads of its own load for it" if threads_at_work(job) else ""


_Apply = Callable[[Around, Pipeline, Fit], tuple[Pipeline, Fit]]


class _AssumedChange(Struct, frozen=True):
    kind: str  # a key of `SAME`
    words: str
    assumes: str
    apply: _Apply
    least: _Apply | None = None  # the least and the most it brings, if these differ
    most: _Apply | None = None
    gives_work: bool = False  # whether workers get more work: only then a step may become longer


def options(
    readings: Sequence[Reading], cause: str, culprits: Sequence[Culprit], bound: float | None, advised: Collection[int] = ()
) -> list[WhatIf]:
    """Predictions of changes, most gain first, unknown ones last; none contradicts the fixes. ``bound``:
    `gputop.findings.verdict.speedup_max` of the cause. ``advised``: numbers of workers that fixes name."""
    if not readings or cause == "hung-worker":
        return []
    mean, around, alike = _mean(readings)
    has_workers = LOADING[around.kind].has_workers
    found = [_not_known(NUMBERS, around.unknown)] if around.unknown and has_workers else []
    if cause == "host-optimizer":  # no worker can take that over
        own, around = around.moves, replace(around, moves=0.0)
        found += [_prediction(mean, around, alike, _on_gpu(own), inf if bound is None else bound)] if own >= WORTH else []
    elif has_workers and not around.counts_launches and cause not in SAME["main"]:
        found += _without_launches(mean, around)
        around = replace(around, moves=0.0)
    numbers: list[WhatIf] = []
    for one in _changes(mean, around, cause, culprits, advised):
        most = bound if bound is not None and cause in SAME[one.kind] else inf
        (numbers if one.kind == "workers" else found).append(_prediction(mean, around, alike, one, most))
    found += _not_against([one for one in numbers if (one.factor or 0.0) > 1.0 + NOTHING], numbers, mean.workers, advised)
    if cause == "small-kernels":  # a GPU counts as busy while the smallest of kernels runs on it
        found = [_not_known(one.change, "kernels this short do not fill it") if _is_faster_gpu(one) else one for one in found]
    return sorted(found, key=lambda one: -(one.factor or 0.0))


def _not_against(helpful: list[WhatIf], numbers: list[WhatIf], now: int, advised: Collection[int]) -> list[WhatIf]:
    """Predictions of other numbers of workers that agree with fixes which name one: if that is less than ``now``, no larger numbers; and no
    line that another number would bring nothing."""
    if advised and max(advised) <= now:
        return [one for one in helpful if int(one.change.split()[0]) <= now]
    return helpful or ([] if advised else [replace(one, change=NUMBERS) for one in numbers[-1:]])


def _is_faster_gpu(one: WhatIf) -> bool:
    """True if the prediction is that a faster GPU would help."""
    return one.change == FASTER_GPU and (one.high or 0.0) > 1.0 + NOTHING


def _without_launches(mean: Pipeline, around: Around) -> list[WhatIf]:
    """Predictions marked unknown because launches, which stay with the main thread, are not counted."""
    if around.unknown or around.moves < 2 * WORTH:
        return []
    return [_not_known(MAIN_WORK if mean.workers else NUMBERS, "the main thread's launches of kernels are not counted (eBPF probes)")]


def _not_known(change: str, why: str) -> WhatIf:
    return WhatIf(change, None, None, None, filled("not known: {}", why))


def predict(readings: Sequence[Reading], workers: int) -> WhatIf:
    """Prediction for one number of workers. Called by tests/experiments/whatif_pairs.py alone."""
    mean, around, alike = _mean(readings)
    return _prediction(mean, around, alike, _of_workers(mean, workers))


def _mean(readings: Sequence[Reading]) -> tuple[Pipeline, Around, list[Reading]]:
    """(mean of the windows with as many workers and CPUs as the last one, its surroundings, these windows)."""
    last, around = readings[-1].pipeline, readings[-1].around
    settled = readings[1:] if len(readings) > 2 else readings  # the first window of a cause has something of the time before it
    alike = [one for one in settled if (one.pipeline.workers, one.pipeline.cpus) == (last.workers, last.cpus)]
    means: dict[str, float] = {}
    for name in Pipeline.__struct_fields__:
        known = [value for one in alike if (value := getattr(one.pipeline, name)) is not None]
        if name not in ("workers", "grouped") and known:
            means[name] = median(known) if name == "disk_used" else fmean(known)  # a window may begin before its limit
    takers: Counter[int] = Counter()
    for one in alike:
        takers.update(one.around.takers)
    parts = {name: fmean(getattr(one.around, name) for one in alike) for name in ("memory", "moves", "main_disk", "main_apart")}
    counted = any(one.around.counts_launches for one in alike)
    around = replace(around, takers={pid: cores / len(alike) for pid, cores in takers.items()}, counts_launches=counted, **parts)
    return replace(last, **means), around, alike


def _prediction(mean: Pipeline, around: Around, alike: Sequence[Reading], one: _AssumedChange, bound: float = inf) -> WhatIf:
    most, least = min(bound, _most(mean, one.kind)), 0.0 if one.gives_work else 1.0
    factor, low, high = (round(max(least, min(value, most)), 2) for value in _band(mean, around, alike, one))
    return WhatIf(one.words, factor, low, high, one.assumes)


def _most(mean: Pipeline, kind: str) -> float:
    """Upper bound of the speed-up: the GPU's work stays; for a faster GPU and for copies everything else stays (Amdahl)."""
    if kind == "gpu":
        return 1.0 / (1.0 - min(1.0, mean.gpu or 0.0) * (1.0 - 1.0 / FASTER))
    stays = max(mean.gpu or 0.0, 1.0 - mean.copy if kind == "copy" else 0.0)
    return 1.0 / stays if stays > 0.0 else inf


def _band(mean: Pipeline, around: Around, alike: Sequence[Reading], one: _AssumedChange) -> Band:
    """The mean window's band, widened by the spread of the single windows."""
    bands = [mean.change(partial(apply, around)) for apply in (one.apply, one.least, one.most) if apply is not None]
    each = [log(max(WORTH, read.pipeline.factor(partial(one.apply, read.around)))) for read in alike[-MOST_COMPARED:]]
    spread = exp(SIGMAS * stdev(each) / sqrt(len(each)) if len(each) > 1 else ONE_WINDOW)
    return Band(bands[0].factor, min(band.low for band in bands) / spread, max(band.high for band in bands) * spread)


def _changes(
    mean: Pipeline, around: Around, cause: str, culprits: Sequence[Culprit], advised: Collection[int]
) -> Iterator[_AssumedChange]:
    """Yields the changes that may bring something."""
    ways, itself = LOADING[around.kind], around.moves + around.main_disk + around.main_apart >= WORTH
    if not around.unknown and ways.has_workers and (mean.workers or itself):
        yield from _numbers(mean, around, advised)
    elif not around.unknown and ways.apart and itself and not mean.workers:
        yield replace(_of_workers(mean, 1), words=ways.apart, assumes="another thread or process takes over what is no launch of kernels")
    if culprits and (one := _without(cause, culprits, around)) is not None:
        yield one
    if mean.disk + around.main_disk >= WORTH and not around.served:
        yield _AssumedChange("disk", "data set in page cache", "it fits into memory, and no read waits for the disk", _cached)
    if mean.cpus < around.host_cpus:
        yield _AssumedChange(
            "cpus", filled("all {} CPUs of the host", around.host_cpus), "no CPU mask; others there go on as they do", _unmasked
        )
    elif mean.ready + mean.own_ready >= WORTH:
        cpus, workers = 2.0 * mean.cpus, max(mean.workers, min(2 * mean.workers, int(2 * mean.cpus)) if ways.has_workers else 0)
        words = filled("{:g} CPUs{}", cpus, filled(" with {} workers", workers) if workers > mean.workers else "")
        more, assumes = workers > mean.workers, "others take no more of them than now"
        yield _AssumedChange("cpus", words, assumes, partial(_resized, cpus, workers), gives_work=more)
    if mean.quota and mean.throttled >= WORTH:
        yield _AssumedChange("quota", "without the CPU quota", "the CPUs themselves are shared as now", _unlimited)
    if mean.copy >= WORTH:
        yield _copying(around)
    if mean.workers and ways.has_workers and around.moves >= 2 * WORTH:
        moved = [partial(_move, part) for part in MOVED]
        assumes = filled("{:.0f} % of it is no launch of kernels", 100 * MOVED[1])
        yield _AssumedChange("main", MAIN_WORK, assumes, moved[1], moved[2], moved[0], gives_work=True)
    if mean.gpu is not None:
        yield _AssumedChange("gpu", FASTER_GPU, filled("{:g} times as fast; the host's work stays as it is", FASTER), _faster)


def _numbers(mean: Pipeline, around: Around, advised: Collection[int]) -> Iterator[_AssumedChange]:
    """Yields changes of the number of workers: twice as many, one per CPU, the fewest that are as good as any, and the ``advised`` ones."""
    cpus, now = int(mean.cpus), mean.workers
    most = max(cpus, 2 * now, 2)
    tried = [count for count in sorted({1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, cpus, now, 2 * now}) if 0 < count <= most]
    factors = {count: mean.factor(partial(_staffed, count, MOVED[1], around)) for count in tried}
    best = min(count for count in tried if factors[count] >= LIKE_BEST * max(factors.values()))
    for count in sorted({best, cpus, 2 * max(1, now), *advised} - {now}):
        yield _of_workers(mean, count)


def _of_workers(mean: Pipeline, count: int) -> _AssumedChange:
    most, likely, least = (partial(_staffed, count, part) for part in MOVED)
    words, assumes = (
        "1 worker" if count == 1 else filled("{} workers", count),
        filled("a batch costs as much; {}, SMT left out", counted(int(mean.cpus), "CPU")),
    )
    unlike = not mean.workers  # the share of the main thread's work that moves is a guess
    return _AssumedChange("workers", words, assumes, likely, least if unlike else None, most if unlike else None, gives_work=True)


def _staffed(count: int, part: float, around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    """The pipeline with ``count`` workers; if the main thread loads at present, they take over that ``part`` of its own work."""
    if one.workers:
        return replace(one, workers=count), fit
    moved, disk = part * around.moves, min(around.main_disk, one.rest)
    apart = min(part * around.main_apart, one.rest - disk)
    return replace(one, workers=count, run=moved, own=one.own - moved, disk=disk, apart=apart, rest=one.rest - disk - apart), fit


def _without(cause: str, culprits: Sequence[Culprit], around: Around) -> _AssumedChange | None:
    more = f" and {len(culprits) - 1} more" if len(culprits) > 1 else ""
    pids = frozenset(one.pid for one in culprits)
    if cause == "cpu-contention" and pids & around.takers.keys():
        assumes = "the CPUs that it took are left to the job"
        return _AssumedChange("strangers", filled("without {}{}", culprits[0].name, more), assumes, partial(_alone, pids))
    if cause == "disk-io":
        assumes, half = "half of the disk waits are its doing (none to all)", partial(_less_disk, 0.5)
        return _AssumedChange("strangers", filled("without {}{}", culprits[0].name, more), assumes, half, partial(_less_disk, 1.0), _cached)
    if cause == "memory-pressure":
        return _AssumedChange("strangers", filled("without {}{}", culprits[0].name, more), "memory has room for all pages then", _roomy)
    return None


def _alone(pids: frozenset[int], around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    taken = sum(cores for pid, cores in around.takers.items() if pid in pids)
    part = min(1.0, taken / one.others) if one.others > 0.0 else 0.0
    return one, replace(fit, crowd=fit.crowd * (1.0 - part), kept=fit.kept * (1.0 - part), fixed=fit.fixed - part * fit.waits)


def _less_disk(part: float, around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    rest = max(0.0, one.rest - (1.0 - part) * around.main_disk)
    return replace(one, disk=part * one.disk, rest=rest), replace(fit, disk_floor=part * fit.disk_floor)


def _cached(around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    return _less_disk(0.0, around, one, fit)


def _roomy(around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    if one.workers:
        return replace(one, apart=one.apart - around.memory), fit
    return replace(one, rest=one.rest - around.memory), fit


def _unmasked(around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    one, wider = _resized(float(around.host_cpus), one.workers, around, one, fit)
    return one, replace(wider, crowd=fit.crowd + around.others_outside)


def _resized(cpus: float, workers: int, _around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    return replace(one, cpus=cpus, workers=workers), replace(fit, fixed=fit.fixed - fit.waits * (1.0 - one.cpus / cpus))


def _unlimited(_around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    """The pipeline without its quota. Time that no stage explains counts as the quota's, up to the time throttled."""
    return replace(one, quota=None), replace(fit, fixed=max(0.0, fit.fixed - one.throttled))


def _copying(around: Around) -> _AssumedChange:
    if around.pinned is None:
        return _AssumedChange("copy", "without its copies", "the data lie on the GPU, or are copied during a step", partial(_copied, 0.0))
    assumes = filled("copies at {:.0f} % of the link; during the step at best", 100 * LINK_SHARE)
    return _AssumedChange("copy", "pinned memory", assumes, partial(_copied, around.pinned), None, partial(_copied, 0.0))


def _copied(takes: float, _around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    return replace(one, copy=min(one.copy, takes)), fit


def _move(part: float, around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    moved = min(one.own, part * around.moves)
    return replace(one, own=one.own - moved, run=one.run + moved), fit


def _on_gpu(own: float) -> _AssumedChange:
    """The change that takes an update of ``own`` time off the main thread."""
    likely, least, most = (partial(_without_update, part * own) for part in (MOVED[1], MOVED[2], MOVED[0]))
    assumes = filled("{:.0f} % of the main thread's work is the update, which takes no time there", 100 * MOVED[1])
    return _AssumedChange("main", ON_GPU, assumes, likely, least, most)


def _without_update(less: float, _around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    return replace(one, own=max(0.0, one.own - less)), fit


def _faster(_around: Around, one: Pipeline, fit: Fit) -> tuple[Pipeline, Fit]:
    return replace(one, gpu=(one.gpu or 0.0) / FASTER), fit


