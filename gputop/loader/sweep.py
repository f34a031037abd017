"""Finds how many workers a DataLoader needs: tries each number, and measures what limits it.

A point is read as fast as it delivers, after its start and a warm-up, for a bounded time. Points read on where the last one stopped, so
that none finds in the page cache what another has read. Points that read from storage while others did not are measured once more.
"""

from __future__ import annotations

import multiprocessing
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputop.diagnosis.forecast.pipeline import Pipeline
from gputop.loader.bottleneck import OTHERS_TOLD, BottleneckMeter, pipeline, reason, usable_cpus
from gputop.loader.loaders import Interrupts, Rebuilt, end_workers, name_of, passing_s, ranks, said, same_random_numbers, torch_base
from gputop.system.errors import UserError
from gputop.system.text import clean, counted, figure

WORKERS = (0, 2, 4, 8, 12)
SECONDS = 3.0  # s measured of each number of workers
PATIENCE_S = 120.0  # s without a batch after which workers count as hung
WITHIN = 0.05  # of the best rate: a smaller number of workers in this reach is as good
MOST_WORKERS = 1024
_ROUNDS = 2  # batches of each worker that warm it up: allocators, imports inside of the data set, files that it opens
_OVERTIME = 4.0  # times ``seconds`` that a point may take until each worker has delivered one batch
_STARTS = 0.05  # start-up time, as a share of an epoch, from which it is reported (the reach of `WITHIN`)


class Point(Struct, frozen=True):
    """Measurement with one number of workers. If it failed, its numbers are None and ``error`` has the reason."""

    workers: int
    batches_per_s: float | None = None
    batch_ms: float | None = None  # median time per batch, of stretches of as many batches as workers: they deliver in bursts
    p99_ms: float | None = None  # of the waits for one batch
    slowest_ms: float | None = None  # longest wait for one batch
    startup_s: float | None = None  # until the first batch was there; not part of the other numbers
    batches: int = 0  # counted
    measured_s: float = 0.0
    cpu_ms: float | None = None  # CPU time per batch of the workers, or of this process without workers
    consumer_pct: float | None = None  # CPU of this process's busiest thread
    cpus_busy_pct: float | None = None  # of the allowed CPUs, by whomever
    others_pct: float | None = None  # of the CPUs' time, by processes outside of this sweep
    shares: dict[str, float] = {}  # state -> share of the workers' time: on-cpu, runnable, idle, or what they wait for
    storage_mb_per_s: float | None = None
    is_cold: bool = False  # whether a notable part came from storage
    shm_pct: float | None = None  # highest use of /dev/shm
    predicted_per_s: float | None = None  # from the first point, by `gputop.diagnosis.forecast.pipeline`, before this one was measured
    predicted_low_per_s: float | None = None  # what it lies between
    predicted_high_per_s: float | None = None
    why: str = ""  # what holds it back
    error: str = ""


class Sweep(Struct, frozen=True):
    """The points of a sweep and what follows from them. ``print`` shows the table."""

    loader: str
    data_set: str
    batch_size: int | None
    num_workers: int  # what the loader has
    cpus: float  # that may be used
    points: tuple[Point, ...]
    recommended_workers: int
    best_workers: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def json(self) -> bytes:
        """One JSON object."""
        return msgspec.json.encode(self)

    def plot(self, width: int = 100, height: int = 16) -> str:
        """Batches per second over the number of workers, with the prediction as a second line."""
        from gputop.findings.text import Times, chart

        known = [(point.workers, point.batches_per_s) for point in self.points if point.batches_per_s is not None]
        foretold = [(point.workers, point.predicted_per_s) for point in self.points if point.predicted_per_s is not None]
        foretold += known[:1] if foretold else []  # the point that foretells
        lines = [line for line in (sorted(known), sorted(foretold)) if len(line) > 1] or [sorted(known)]
        title = "batches per second over workers" + (", and predicted" if len(foretold) > 1 else "")
        ends = [point.workers for point in self.points]
        axis = Times(min(ends), max(ends), {number: str(number) for number in sorted(ends)})
        return chart(title, lines, 0.0, 1.1 * max(y for line in lines for _, y in line), width, height, axis)

    def lines(self, width: int | None = None) -> Iterator[str]:
        """Lines of the table, the recommendation and the notes; in ``width`` columns if that is given.

        The limit of each number of workers stands next to its figures, or below them if there is no room.
        """
        size = f", batch size {self.batch_size}" if self.batch_size else ""
        yield from _within(f"{self.loader} of {self.data_set}{size}, on {counted_cpus(self.cpus)}", width)
        foretold = any(point.predicted_per_s is not None for point in self.points)
        names = ["workers", "batches/s", *(["predicted"] if foretold else []), "ms/batch", "p99 ms", "max ms", "start s", "CPU ms"]
        widths = [max(8, len(name) + 1) for name in names]
        head, last, rows = "".join(map(str.rjust, names, widths)), "  what holds it back", list[tuple[str, str]]()
        for point in self.points:
            numbers = (point.batch_ms, point.p99_ms, point.slowest_ms, point.startup_s, point.cpu_ms)
            values = [point.batches_per_s, *([point.predicted_per_s] if foretold else []), *numbers]
            mark = "→ " if point.workers == self.recommended_workers else ""
            cells = [f"{mark}{point.workers}", *("–" if value is None else figure(value, 3) for value in values)]
            rows.append(("".join(map(str.rjust, cells, widths)), f"{point.error or point.why}{' (cold)' if point.is_cold else ''}"))
        is_beside = width is None or max(len(row) + 2 + len(why) for row, why in rows) <= width
        yield head + last if is_beside else head
        for row, why in rows:
            yield from [clean(f"{row}  {why}")] if is_beside else [row, *_within(why, width, " " * (widths[0] + 1))]
        for text in (self.advice(), *self.notes):
            yield from _within(text, width)

    def advice(self) -> str:
        """The recommendation in a sentence."""
        by_workers = {point.workers: point for point in self.points}
        chosen, best = by_workers[self.recommended_workers], by_workers[self.best_workers]
        told = f"num_workers={chosen.workers}: {figure(chosen.batches_per_s or 0.0, 3)} batches/s"
        if chosen is not best:
            told += f", within {100 * WITHIN:.0f} % of the best ({best.workers}: {figure(best.batches_per_s or 0.0, 3)})"
        now = by_workers.get(self.num_workers)
        if now is not None and now is not chosen and now.batches_per_s:
            told += f"; the {self.num_workers} of today: {figure(now.batches_per_s, 3)}"
        return told


def _within(text: str, width: int | None, indent: str = "") -> list[str]:
    """The text, cleaned, in lines of at most ``width`` columns."""
    return [clean(text)] if width is None else textwrap.wrap(clean(text), width, initial_indent=indent, subsequent_indent=indent or "  ")


def counted_cpus(cpus: float) -> str:
    """``16 CPUs``, ``1.5 CPUs``."""
    return counted(int(cpus), "CPU") if cpus == int(cpus) else f"{cpus:g} CPUs"


def sweep_loader(
    loader: Any,
    workers: Iterable[int] = WORKERS,
    *,
    batches: int | None = None,
    seconds: float = SECONDS,
    patience_s: float = PATIENCE_S,
    progress: Callable[[Point], object] | None = None,
) -> Sweep:
    """Measure batches per second of a torch DataLoader for each number of workers, and what holds each back.

    Each number takes ``seconds`` after its start and warm-up, or ends after ``batches``. ``progress`` gets each point once it is
    measured. The loader, its data set and all random states stay as they are; workers and their shared memory are gone afterwards.
    Raises UserError for arguments that make no sense; a number that fails becomes a point with ``error``, and where all fail, the
    first error is raised. Source of the readings: `gputop.loader.bottleneck`.
    """
    torch_base(loader)
    numbers = _checked(workers, batches, seconds, patience_s)
    with Interrupts() as interrupts:
        return _swept(_SweepRun(loader, interrupts, batches, seconds, patience_s), numbers, progress)


def _swept(run: _SweepRun, numbers: Sequence[int], progress: Callable[[Point], object] | None) -> Sweep:
    points = []
    for number in numbers:
        points.append(run.point(number))
        if progress is not None:
            progress(points[-1])
    if not any(point.batches_per_s for point in points):
        raise run.first_error or UserError("the loader gives no batch")
    cold = [point for point in points if point.is_cold]
    if cold and any(point.batches_per_s and not point.is_cold for point in points):
        points = [run.point(point.workers) if point.is_cold else point for point in points]
        run.notes.append(f"measured again, for they had read from storage: {', '.join(str(point.workers) for point in cold)}")
    return _judged(run.loader, points, run)


def _checked(workers: Iterable[int], batches: int | None, seconds: float, patience_s: float) -> list[int]:
    numbers = list(dict.fromkeys(workers))
    if not numbers or any(type(number) is not int or not 0 <= number <= MOST_WORKERS for number in numbers):
        raise UserError(f"workers: whole numbers from 0 to {MOST_WORKERS}, such as (0, 2, 4)", code=2)
    if not seconds > 0.0 or not patience_s > 0.0 or (batches is not None and batches < 1):
        raise UserError("seconds, patience_s and batches must be above 0", code=2)
    return numbers


def _judged(loader: Any, points: Sequence[Point], run: _SweepRun) -> Sweep:
    rates = {point.workers: point.batches_per_s for point in points if point.batches_per_s}
    best = max(rates, key=lambda number: rates[number])
    chosen = min(number for number, rate in rates.items() if rate >= (1.0 - WITHIN) * rates[best])
    point = next(point for point in points if point.workers == chosen)
    return Sweep(
        loader=name_of(loader), data_set=name_of(loader.dataset), batch_size=getattr(loader, "batch_size", None),
        num_workers=loader.num_workers, cpus=usable_cpus(), points=tuple(points), recommended_workers=chosen, best_workers=best,
        notes=tuple(dict.fromkeys([*run.notes, *_notes(loader, points, point)])),
    )  # fmt: skip


def _notes(loader: Any, points: Sequence[Point], point: Point) -> Iterator[str]:
    """Notes for the reader of the table; ``point`` is the recommended one."""
    if (others := max(point.others_pct or 0.0 for point in points)) >= 100 * OTHERS_TOLD:
        yield f"other processes took up to {others:.0f} % of the CPUs: measure on an idle machine"
    rank, total = ranks()
    if total > 1:
        yield f"rank {rank} of {total}: ranks on this host share its CPUs; sweep in all ranks at once to see what each gets"
    if point.workers and not loader.persistent_workers and point.batches_per_s and point.startup_s:
        with suppress(TypeError, NotImplementedError):
            epoch_s = len(loader) / point.batches_per_s
            if point.startup_s > _STARTS * epoch_s:
                yield (
                    f"an epoch takes {figure(epoch_s, 2)} s and the start of its workers {figure(point.startup_s, 2)} s more: "
                    "persistent_workers=True pays it once"
                )


class _SweepRun:
    """A sweep under way."""

    def __init__(self, loader: Any, interrupts: Interrupts, batches: int | None, seconds: float, patience_s: float) -> None:
        self.loader = loader
        self.notes: list[str] = []
        self.first_error: Exception | None = None
        self._interrupts, self._batches, self._seconds, self._patience_s = interrupts, batches, seconds, patience_s
        self._read = 0  # batches that the points before have taken from the sampler
        self._model: Pipeline | None = None  # of the first point, in seconds of a batch
        self._passing = 0.0, 0.0  # CPU s that it takes to pass a batch on and to fetch it, where the first point has no workers that do

    def point(self, workers: int) -> Point:
        """Measure one number of workers."""
        try:
            with same_random_numbers(), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than CPUs are what is tried
                rebuilt = Rebuilt(self.loader, workers, skipped=self._read, patience_s=self._patience_s)
                self.notes += rebuilt.notes
                measured = _Measured(rebuilt, workers, self._interrupts, self._batches, self._seconds)
                measured.run()
            if rebuilt.endless is not None:
                self._read += rebuilt.endless.given
            return self._foretold(measured.point(), measured)
        except UserError:
            raise
        except Exception as error:  # noqa: BLE001 - the data set is the user's, and other numbers of workers may go well
            self.first_error = self.first_error or error
            return Point(workers, error=f"failed: {said(error)}")

    def _foretold(self, point: Point, measured: _Measured) -> Point:
        """The point with the rate that the model predicts for it. The first point measured becomes the model, and gets no prediction."""
        model = self._model
        if model is None:
            self._model, self._passing = measured.pipeline(point), measured.passing_s()
            return point
        if model.workers == point.workers:
            return point
        send_s, receive_s = self._passing
        band = model.change(lambda one, fit: (replace(one, workers=point.workers, run=one.run + send_s, own=one.own + receive_s), fit))
        likely, low, high = (factor / model.step for factor in band)
        return replace(point, predicted_per_s=likely, predicted_low_per_s=low, predicted_high_per_s=high)


def _workers_of(iterator: Any, others: set[Any]) -> list[Any]:
    """The worker processes of a DataLoader's iterator; where it knows none, or failed to start, the children that were not there before."""
    known = getattr(iterator, "_workers", None)
    return list(known) if known is not None else [child for child in multiprocessing.active_children() if child not in others]


class _Measured:
    """The measurement of one number of workers: epoch by epoch, from the batch that ends the warm-up on."""

    def __init__(self, rebuilt: Rebuilt, workers: int, interrupts: Interrupts, batches: int | None, seconds: float) -> None:
        self._rebuilt, self._workers, self._interrupts, self._most, self._seconds = rebuilt, workers, interrupts, batches, seconds
        self._round = max(1, workers)  # batches
        self._watch = BottleneckMeter()
        self._startup_s: float | None = None
        self._warm_by = self._deadline = 0.0  # when the warm-up, and all, ends at the latest; from the first batch on
        self._counted = 0
        self._counted_s = 0.0
        self._waits: list[float] = []  # s for one batch
        self._per_batch: list[float] = []  # s per batch, over rounds
        self._sample: Any = None  # without workers the latest batch
        self._whole: list[tuple[int, float]] = []  # (batches, s) of whole epochs that were too short to leave a warm-up out

    def run(self) -> None:
        """Read until there is enough, or the time is over. Raises what the data set raises."""
        while True:
            before = self._counted, len(self._whole)
            self._read_epoch()
            if self._is_enough() or time.monotonic() >= self._deadline or (self._counted, len(self._whole)) == before:
                return

    def _read_epoch(self) -> None:
        """One pass over the loader; an endless one until there is enough."""
        others = set(multiprocessing.active_children())
        iterator = None
        began = time.monotonic()
        try:
            with nullcontext() if self._workers else self._interrupts.allowed():  # workers that start are to be known
                iterator = iter(self._rebuilt.loader)
            with self._interrupts.allowed():
                self._read_batches(iterator, [worker.pid for worker in _workers_of(iterator, others)], began)
        finally:
            self._watch.stop()
            end_workers(iterator, _workers_of(iterator, others))
            vars(self._rebuilt.loader)["_iterator"] = None

    def _read_batches(self, iterator: Any, workers: list[int], began: float) -> None:
        arrivals: list[float] = []  # from the batch that ends the warm-up on
        read, is_first = 0, self._startup_s is None
        warm_up = self._round * (_ROUNDS if is_first else 1) + (1 if self._workers == 0 and is_first else 0)
        for batch in iterator:
            self._sample = batch if self._workers == 0 else None
            now = time.monotonic()
            read += 1
            if self._startup_s is None:
                self._startup_s = now - began - (self._rebuilt.endless.skipped_s if self._rebuilt.endless is not None else 0.0)
                self._warm_by, self._deadline = now + self._seconds, now + (1.0 + _OVERTIME) * self._seconds
            if not arrivals:
                if read < warm_up and not (is_first and now >= self._warm_by and read > 1):
                    continue
                self._watch.start(workers)
            arrivals.append(now)
            counted = self._counted + len(arrivals) - 1
            counted_s = self._counted_s + now - arrivals[0]
            if self._most is not None and counted >= self._most:
                break
            if counted_s >= self._seconds and (counted >= self._round or now >= self._deadline):
                break
            if now >= self._deadline and counted:
                break
        else:
            if read and len(arrivals) <= self._round:
                self._whole.append((read, time.monotonic() - began))
        self._book(arrivals)

    def _book(self, arrivals: Sequence[float]) -> None:
        """Count whole rounds, so that no burst is cut."""
        last = len(arrivals) - 1
        whole = last - last % self._round if last >= self._round else last
        if whole <= 0:
            return
        self._counted += whole
        self._counted_s += arrivals[whole] - arrivals[0]
        self._waits += [after - before for before, after in pairwise(arrivals)]
        step = min(self._round, whole)
        self._per_batch += [(arrivals[at + step] - arrivals[at]) / step for at in range(last - step + 1)]

    def _is_enough(self) -> bool:
        if self._most is not None and self._counted >= self._most:
            return True
        return self._counted_s + sum(seconds for _, seconds in self._whole) >= self._seconds

    def point(self) -> Point:
        """The measured point."""
        if not self._counted:
            return self._whole_epochs()
        usage = self._watch.usage
        shares = usage.shares(self._watch.sleeps)
        consumer = max(self._watch.threads_s.values(), default=0.0) / usage.wall_s if usage.wall_s else None
        rate = self._counted / self._counted_s
        waits = sorted(self._waits)
        return Point(
            self._workers, batches_per_s=rate, batch_ms=1e3 * median(self._per_batch), p99_ms=1e3 * waits[int(0.99 * (len(waits) - 1))],
            slowest_ms=1e3 * waits[-1], startup_s=self._startup_s, batches=self._counted, measured_s=self._counted_s,
            cpu_ms=1e3 * usage.cpu_per_batch_s(self._workers, 1 / rate) if usage.workers_s else None,
            consumer_pct=None if consumer is None else 100 * consumer,
            cpus_busy_pct=None if usage.cpus_busy is None else 100 * usage.cpus_busy,
            others_pct=None if usage.cpus_busy is None else 100 * usage.others, shares=shares,
            storage_mb_per_s=usage.storage_bytes / 1e6 / usage.wall_s if usage.wall_s else None, is_cold=usage.is_cold(shares),
            shm_pct=None if usage.shm_used is None else 100 * usage.shm_used, why=reason(self._workers, usage, shares, consumer),
        )  # fmt: skip

    def pipeline(self, point: Point) -> Pipeline | None:
        """Model that predicts other numbers of workers from this point; None if too little was measured."""
        if not self._counted or not self._watch.usage.wall_s or not point.shares:
            return None
        consumer = (point.consumer_pct or 0.0) / 100
        return pipeline(self._workers, self._counted_s / self._counted, self._watch.usage, point.shares, consumer)

    def passing_s(self) -> tuple[float, float]:
        """CPU seconds for what only workers have to do with a batch: to pass it on, and to have it fetched."""
        with suppress(RuntimeError, OSError):  # no room, or a limit on memory
            if self._sample is not None:
                return passing_s(self._sample)
        return 0.0, 0.0

    def _whole_epochs(self) -> Point:
        """The rate of epochs that are too short to leave their start out."""
        batches, seconds = (sum(column) for column in zip(*self._whole, strict=True)) if self._whole else (0, 0.0)
        if not batches:
            return Point(self._workers, startup_s=self._startup_s, error=f"no second batch within {figure(_OVERTIME * self._seconds, 3)} s"
                         if self._startup_s is not None else "failed: the loader gives no batch")  # fmt: skip
        return Point(
            self._workers, batches_per_s=batches / seconds, batch_ms=1e3 * seconds / batches, startup_s=self._startup_s,
            batches=int(batches), measured_s=seconds, why="epochs too short to leave the start of workers out: it is counted",
        )  # fmt: skip
