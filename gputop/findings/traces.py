"""The object that `gputop trace --json` prints, and its lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gputop.findings.message import head, labelled, wrapped
from gputop.model.trace import BY_GPUTOP, IDLE_WORDS, Copies, Named, TraceCheck, TracedJob, TraceReading
from gputop.system.colour import Line
from gputop.system.text import clean, counted, figure, file_size

SCHEMA = 1
AGREE_POINTS = 10.0  # points of a share within which two measurements agree: a trace is 1 s of a few that gputop looks at (a choice)
OPEN = "https://ui.perfetto.dev"
_PARTS = (
    ("loader", "loader_wait_pct", ("waiting-data",)), ("loading", "loading_pct", ("computing", "disk")),
    ("sync", "sync_pct", ("waiting-gpu",)), ("copy", "copy_pct", ("transfer",)),
)  # fmt: skip
"""Part, its share in a trace, and the states of the trainer that are the same as gputop sees it. What the main thread computes is loading
and all else, so its share is the most that loading can have."""
_BEFALL = ("runnable", "throttled", "memory")  # states that befall a thread in any part
_WORDS = {
    "loader": "the loop waited for its loader", "loading": "the loop loaded data itself", "sync": "it waited for the GPU",
    "copy": "it copied to or from the GPU",
}  # fmt: skip


class Traces(Struct, frozen=True):
    """Output of `gputop trace --json`."""

    schema: int
    jobs: list[TracedJob]


def checks(reading: TraceReading, states: Mapping[str, float]) -> list[TraceCheck]:
    """The trace's shares beside gputop's own of the same process: ``states``, state -> share of the time; empty if not known."""
    out = []
    befallen_pct = 100.0 * sum(states.get(word, 0.0) for word in _BEFALL)
    for part, field, words in _PARTS:
        by_trace = getattr(reading, field)
        if by_trace is None or (part == "loading" and not by_trace):
            continue  # what the main thread computes otherwise is no loading
        by_gputop = round(min(100.0, 100.0 * sum(states.get(word, 0.0) for word in words)), 2) if states else None
        if by_trace >= 1.0 or (by_gputop or 0.0) >= 1.0:
            agrees = None if by_gputop is None else _agree(part, by_trace, by_gputop, befallen_pct)
            out.append(TraceCheck(part, by_trace, by_gputop, agrees))
    return out


def _agree(part: str, by_trace: float, by_gputop: float, befallen_pct: float) -> bool | None:
    """True if the shares agree; None if they may, for to torch a wait goes on while its thread waits for a CPU."""
    beyond = by_trace - by_gputop
    if (part == "loading" and beyond < 0.0) or abs(beyond) <= AGREE_POINTS:
        return True
    return None if 0.0 < beyond <= befallen_pct + AGREE_POINTS else False


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
    by = "; taken by gputop itself" if job.by == BY_GPUTOP else ""
    yield head(f"trace of {called}", "info", f"{_time(reading.span_ns)}{steps}; {counted(reading.events, 'event')}{by}")
    yield from labelled("torch", [(text, "warn" if agrees is False else "") for text, agrees in _shares(job)], width)
    if reading.gpu_busy_pct is not None:
        yield from labelled("GPU", [(_gpu(reading), ""), *([(saved_words(reading), "")] if reading.launched else [])], width)
    for label, rows in (("kernel", reading.kernels), ("op", [] if reading.kernels else reading.operators), ("comm", reading.exposed),
                        ("sync", reading.sync_calls), ("at", reading.sync_lines), ("line", reading.launches)):  # fmt: skip
        yield from labelled(label, [(text, "") for text in _rows(rows)], width)
    yield from labelled("copy", [(_copied(one), "") for one in reading.copies], width)
    if reading.left_out:
        yield from labelled("note", [(f"not all of it was read: {reading.left_out}", "warn")], width)
    yield from labelled("file", [(f"{clean(reading.file)} ({file_size(reading.bytes)}): open it in {OPEN}", "")], width)


def _shares(job: TracedJob) -> Iterator[tuple[str, bool | None]]:
    for one in job.checks:
        beside = "gputop has no share of it" if one.gputop_pct is None else f"gputop: {one.gputop_pct:.0f} %"
        unclear = "" if one.gputop_pct is None else ", besides waits for a CPU"
        verdict = {True: ": both agree", False: ": they disagree", None: unclear}[one.agrees]
        yield f"{one.trace_pct:.0f} % {_WORDS.get(one.part, one.part)} ({beside}{verdict})", one.agrees
    if job.reading is not None and job.reading.optimizer_pct >= 1.0:
        yield f"{job.reading.optimizer_pct:.0f} % in its optimizer", None


def _gpu(reading: TraceReading) -> str:
    busy, idle = reading.gpu_busy_pct or 0.0, reading.idle
    shares = [] if idle is None else [(float(getattr(idle, field)), words) for field, words in IDLE_WORDS.items()]
    named = ", ".join(f"{share:.0f} % {words}" for share, words in sorted(shares, reverse=True) if share >= 0.5)
    return f"busy {busy:.0f} % of the time" + (f"; idle: {named}" if named else "")


def saved_words(reading: TraceReading) -> str:
    """Kernels by count, and how many launches torch.compile or CUDA graphs would save."""
    if (found := reading.launched) is None:
        return ""
    each, per = (reading.steps, " a step") if reading.steps else (1, "")
    fused = f", of which torch.compile could fuse up to {figure(found.fusible / each, 3)} into others" if found.fusible else ""
    graphs = f"{counted(found.graphs, 'launch')} of CUDA graphs" if found.graphs else "a CUDA graph launches all by one call"
    return f"{figure(found.kernels / each, 3)} kernels{per}{fused}; {graphs}"


def _rows(found: Sequence[Named]) -> list[str]:
    """``11.2 %  36 × 3.11 ms  name``, in columns."""
    times = max((len(str(one.count)) for one in found), default=0)
    means = max((len(_time(one.mean_ns)) for one in found), default=0)
    return [f"{one.share_pct:>5.1f} %  {one.count:>{times}} × {_time(one.mean_ns):>{means}}  {one.name}" for one in found]


def _copied(one: Copies) -> str:
    mean = file_size(round(one.bytes / max(1, one.count)))
    return f"{one.share_pct:>5.1f} %  {one.count} × {mean}  {one.direction} {one.memory}".rstrip()


def _time(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= size:
            return f"{figure(ns / size, 3)} {unit}"
    return f"{ns:.0f} ns"
