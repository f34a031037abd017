"""Checks of every header and frame that is read, by whichever codec: possible numbers, in bounded amounts.

The readers of a stream (board, history, diagnosis, tables) can then rely on them. ValueError is a broken block; a single reading that is no
number (NaN, infinity), or none that a sensor gives (1e306), becomes one that was not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from math import isfinite
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from gputop.model.frame import MOST_IN_FRAME, CgroupSample, Frame, Gpu, GpuProc, GpuReading, Hardware, Header, Host, MigInstance, Probes
from gputop.model.ranges import MOST_COUNT, MOST_CPUS, MOST_GPUS, MOST_NS, fitted
from gputop.model.trace import CHECKED, MOST_TRACES, TracedJob

LONGEST_INTERVAL_NS = 3600 * 1_000_000_000
LEAST_READING, MOST_READING = -274.0, 1e15  # of gauges in °C, %, W, MHz, CPUs and bytes per second
MOST_TICK_HZ = 1 << 20  # Linux knows 1,000
MOST_WAKES = 1 << 16  # of a machine that sleeps every ten minutes for a year

_One = TypeVar("_One", bound=msgspec.Struct)


def check_header(header: Header) -> None:
    """Raises ValueError."""
    sound = (
        0 <= header.t_ns < MOST_NS and 0 <= header.unix_ns < MOST_NS and 0 < header.interval_ns <= LONGEST_INTERVAL_NS
        and 0 < header.cpus <= MOST_CPUS and 0 < header.clock_tick_hz <= MOST_TICK_HZ and 0 <= header.memory_bytes < 1 << 63
        and len(header.slept) <= MOST_WAKES and all(0 <= at < MOST_NS and 0 <= slept < MOST_NS for at, slept in header.slept)
    )  # fmt: skip
    if not sound:
        raise ValueError("the header's numbers cannot be")


def check_frames(frames: list[Frame]) -> list[Frame]:
    """The frames of a block, which follow each other in time. Raises ValueError."""
    before = 0
    for frame in frames:
        if not before <= frame.t_ns < MOST_NS or not 0 <= frame.seq < MOST_COUNT or not 0 <= frame.missed < MOST_COUNT:
            raise ValueError("a frame's clock cannot be")
        before = frame.t_ns
        times = [one.times for one in frame.met]
        if not 0 <= frame.ticks <= MOST_IN_FRAME or min(times, default=1) <= 0 or max(times, default=1) > MOST_IN_FRAME:
            raise ValueError("a merged frame counts too many")
        if max(map(len, _lists(frame)), default=0) > MOST_IN_FRAME or sum(times) > MOST_IN_FRAME:
            raise ValueError("a frame holds too many readings")
        if frame.gpus:
            frame.gpus = list(map(_gpu, frame.gpus))
        if frame.readings:
            frame.readings = _all_measured(frame.readings)
        if frame.host is not None:
            frame.host = _host(frame.host)
        if frame.traces:
            frame.traces = [_traced(one) for one in frame.traces[:MOST_TRACES]]
        if frame.probes is not None:
            _check_rates(frame.probes)
    return frames


def _traced(job: TracedJob) -> TracedJob:
    """A trace with its numbers in their ranges, and without checks of parts that nobody knows."""
    return fitted(msgspec.structs.replace(job, checks=[one for one in job.checks if one.part in CHECKED]))


def _check_rates(probes: Probes) -> None:
    if not all(0.0 <= rate.per_s <= MOST_READING for rate in probes.launches):
        raise ValueError("a rate is no number")
    if not 0.0 <= probes.share <= 1.0 or not all(0.0 <= call.share <= 1.0 for call in probes.calls):
        raise ValueError("a share is outside of 0 to 1")


def _lists(frame: Frame) -> Iterable[list[Any]]:
    probes = frame.probes
    below = (probes.threads, probes.preempts, probes.wakeups, probes.calls, probes.thread_calls) if probes is not None else ()
    return chain((frame.gpus, frame.procs, frame.infos, frame.sources, frame.stacks, frame.marks, frame.met, frame.readings), below)


def _gpu(gpu: Gpu) -> Gpu:
    if not 0 <= gpu.index < MOST_GPUS or not 0 <= gpu.t_ns < MOST_NS:
        raise ValueError("a GPU's number or clock cannot be")
    gpu = _measured(gpu)
    if gpu.mig:
        gpu = _with(gpu, "mig", _all_measured(gpu.mig))
    return _with(gpu, "procs", _all_measured(gpu.procs)) if gpu.procs else gpu


def _host(host: Host) -> Host:
    if not 0 <= host.t_ns < MOST_NS or any(not 0 <= one.cpu < MOST_CPUS for one in host.cpus or ()):
        raise ValueError("a CPU's number or the host's clock cannot be")
    host = _measured(host)
    if host.hardware is not None and (hardware := _measured(host.hardware)) is not host.hardware:
        host = msgspec.structs.replace(host, hardware=hardware)
    return _with(host, "cgroups", _all_measured(host.cgroups)) if host.cgroups else host


def _all_measured(structs: list[_One]) -> list[_One]:
    """The structs, each as `_measured` returns it; the same list where all are sound, as nearly always: one look at all numbers shows
    it."""
    if not structs:
        return structs
    values_of = _NUMBERS[type(structs[0])][1]
    return structs if _are_readings(chain.from_iterable(map(values_of, structs))) else list(map(_measured, structs))


def _are_readings(values: Iterable[float | None]) -> bool:
    """True if each number is one that a sensor gives: finite, and between `LEAST_READING` and `MOST_READING`."""
    taken = list(filter(None, values))
    return not taken or (isfinite(sum(taken)) and min(taken) >= LEAST_READING and max(taken) <= MOST_READING)


def _measured(struct: _One) -> _One:
    """The struct with None for each number that is no reading: NaN, infinite, or beyond `LEAST_READING` and `MOST_READING`."""
    names, values_of = _NUMBERS[type(struct)]
    values = values_of(struct)
    if _are_readings(values):
        return struct
    none = {name: None for name, value in zip(names, values, strict=True) if value and not LEAST_READING <= value <= MOST_READING}
    return msgspec.structs.replace(struct, **none)


def _with(struct: _One, name: str, value: list[Any]) -> _One:
    """The struct with ``value`` in the field ``name``; the same object if nothing has changed."""
    return struct if value is getattr(struct, name) else msgspec.structs.replace(struct, **{name: value})


def _numbers(struct: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[float | None, ...]]]:
    """The names of its fields that are floats or None, by their annotations, which are text; and what gets their values."""
    names = tuple(name for name, hint in struct.__annotations__.items() if hint == "float | None")
    return names, attrgetter(*names) if len(names) > 1 else lambda one: (getattr(one, names[0]),)


_NUMBERS: dict[type, tuple[tuple[str, ...], Callable[[Any], tuple[float | None, ...]]]] = {
    struct: _numbers(struct) for struct in (Gpu, GpuProc, GpuReading, MigInstance, Host, Hardware, CgroupSample)
}
