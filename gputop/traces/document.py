"""The object that `gputop trace --json` prints, and its lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

from gputop.findings.message import head, labelled, wrapped
from gputop.findings.verdict import Step
from gputop.model.ranges import Percent, Pid, Seconds
from gputop.system.colour import Line
from gputop.system.text import clean, counted, figure, file_size
from gputop.traces.reading import Copies, Named, TraceReading

SCHEMA = 1
AGREE_POINTS = 10.0  # points of a share within which two measurements agree: a trace is 1 s of a few that gputop looks at (a choice)
OPEN = "https://ui.perfetto.dev"
_PARTS = (
    ("loader", "loader_wait_pct", "input_wait_ms"), ("loading", "loading_pct", "compute_ms"), ("sync", "sync_pct", "gpu_wait_ms"),
    ("copy", "copy_pct", "transfer_ms"),
)  # fmt: skip
"""Part, its share in a trace, and its milliseconds in a step as gputop sees it."""
_WORDS = {
    "loader": "the loop waited for its loader", "loading": "the loop loaded data itself", "sync": "it waited for the GPU",
    "copy": "it copied to or from the GPU",
}  # fmt: skip
_IDLE = (("loader_pct", "the host waited for data"), ("sync_pct", "the host had waited for it"), ("copy_pct", "the host copied"),
         ("launch_pct", "launches were under way"), ("host_pct", "the host did something else"))  # fmt: skip


class TraceCheck(Struct, frozen=True):
    """One share of the main thread's time, by torch's own trace and by gputop from outside. ``agrees``: None where gputop has none."""

    part: str  # ``loader``, ``loading`` (without workers), ``sync``, ``copy``
    trace_pct: Percent
    gputop_pct: Percent | None
    agrees: bool | None


class TracedJob(Struct, frozen=True):
    """One process that was asked. ``reading``: None without a trace, ``error`` has the reason."""

    pid: Pid
    name: str
    took_s: Seconds
    reading: TraceReading | None
    checks: Annotated[list[TraceCheck], Meta(max_length=8)]
    error: str | None = None


class Traces(Struct, frozen=True):
    """Output of `gputop trace --json`."""

    schema: int
    jobs: list[TracedJob]


def checks(reading: TraceReading, step: Step | None) -> list[TraceCheck]:
    """The trace's shares beside gputop's own of the same process; empty without a step of gputop's."""
    whole_ms = 1000.0 / step.per_s if step is not None and step.per_s > 0.0 else 0.0
    out = []
    for part, field, own in _PARTS:
        by_trace = getattr(reading, field)
        if by_trace is None or (part == "loading" and not by_trace):
            continue  # what the main thread computes otherwise is no loading
        by_gputop = round(min(100.0, 100.0 * float(getattr(step, own)) / whole_ms), 2) if whole_ms else None
        agrees = None if by_gputop is None else abs(by_trace - by_gputop) <= AGREE_POINTS
        if by_trace >= 1.0 or (by_gputop or 0.0) >= 1.0:
            out.append(TraceCheck(part, by_trace, by_gputop, agrees))
    return out


def lines(jobs: Sequence[TracedJob], width: int) -> Iterator[Line]:
    """What was found, job by job, in the shape of a finding."""
    for i, job in enumerate(jobs):
        if i:
            yield []
        yield from _job_lines(job, width)


def _job_lines(job: TracedJob, width: int) -> Iterator[Line]:
    called = f"{clean(job.name, 60)} ({job.pid})" if job.pid else clean(job.name, 200)
    reading = job.reading
    if reading is None:
        yield head(f"no trace of {called}", "low")
        yield from wrapped(job.error or "", width)
        return
    steps = f", {counted(reading.steps, 'step')}" if reading.steps else ""
    yield head(f"trace of {called}", "info", f"{_time(reading.span_ns)}{steps}; {counted(reading.events, 'event')}")
    yield from labelled("torch", [(text, "warn" if agrees is False else "") for text, agrees in _shares(job)], width)
    if reading.gpu_busy_pct is not None:
        yield from labelled("GPU", [(_gpu(reading), "")], width)
    for label, rows in (("kernel", reading.kernels), ("op", [] if reading.kernels else reading.operators), ("comm", reading.exposed),
                        ("sync", reading.sync_calls), ("line", reading.launches)):  # fmt: skip
        yield from labelled(label, [(_row(row), "") for row in rows], width)
    yield from labelled("copy", [(_copied(one), "") for one in reading.copies], width)
    if reading.left_out:
        yield from labelled("note", [(f"not all of it was read: {reading.left_out}", "warn")], width)
    yield from labelled("file", [(f"{clean(reading.file)} ({file_size(reading.bytes)}): open it in {OPEN}", "")], width)


def _shares(job: TracedJob) -> Iterator[tuple[str, bool | None]]:
    for one in job.checks:
        beside = "gputop has no step of it" if one.gputop_pct is None else f"gputop: {one.gputop_pct:.0f} %"
        verdict = {True: ": both agree", False: ": they disagree", None: ""}[one.agrees]
        yield f"{one.trace_pct:.0f} % {_WORDS[one.part]} ({beside}{verdict})", one.agrees
    if job.reading is not None and job.reading.optimizer_pct >= 1.0:
        yield f"{job.reading.optimizer_pct:.0f} % in its optimizer", None


def _gpu(reading: TraceReading) -> str:
    busy, idle = reading.gpu_busy_pct or 0.0, reading.idle
    shares = [] if idle is None else [(float(getattr(idle, field)), words) for field, words in _IDLE]
    told = ", ".join(f"{share:.0f} % {words}" for share, words in sorted(shares, reverse=True) if share >= 0.5)
    return f"busy {busy:.0f} % of the time" + (f"; idle: {told}" if told else "")


def _row(one: Named) -> str:
    return f"{one.share_pct:>5.1f} %  {one.count} × {_time(one.mean_ns)}  {one.name}"


def _copied(one: Copies) -> str:
    mean = file_size(round(one.bytes / max(1, one.count)))
    return f"{one.share_pct:>5.1f} %  {one.count} × {mean}  {one.direction} {one.memory}".rstrip()


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{figure(ns / size, 3)} {unit}"
    return f"{ns:.0f} ns"
