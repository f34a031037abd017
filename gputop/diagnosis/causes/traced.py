"""What torch's own trace shows of a cause: whether it agrees with gputop, which kernels and calls it names, and what it explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from gputop.diagnosis.causes import Finding
from gputop.diagnosis.facts.traced import kernel_name
from gputop.diagnosis.graph.job import WalkedJob
from gputop.findings import policy
from gputop.findings.sentence import filled, joined
from gputop.findings.verdict import Evidence
from gputop.model.trace import IDLE_WORDS, Named, TraceCheck, TraceReading

NAMED = 3  # kernels, calls or operators that a sentence names (a choice)
_SHARES = {"loader": "loader", "loading": "loading", "sync": "waits for the GPU", "copy": "copies"}


def checked(finding: Finding, job: WalkedJob, cause: str, symptom: str) -> Finding:
    """The finding with torch's shares beside gputop's own, that of the cause first; as it is without a trace."""
    if job.trace is None or not job.trace.checks:
        return finding
    own = job.trace.check_of(cause, symptom)
    rows = sorted(job.trace.checks, key=lambda one: one is not own)
    beside = finding.detail if own is None else filled("{}; {}", finding.detail, _beside(own))
    return replace(finding, detail=beside, evidence=(*finding.evidence, *map(_evidence, rows)))


def _beside(one: TraceCheck) -> str:
    words = filled("torch's own trace: {:.0f}% {}, gputop: {:.0f}%", one.trace_pct, _SHARES[one.part], one.gputop_pct)
    return words if one.agrees else filled("{}, which disagree", words)


def _evidence(one: TraceCheck) -> Evidence:
    name = _SHARES[one.part]
    if one.gputop_pct is None:
        text = filled("{} by torch's own trace", name)
    elif one.agrees is None:
        text = filled("{} by torch's own trace; gputop: {:.0f}%, besides waits for a CPU", name, one.gputop_pct)
    elif one.agrees:
        text = filled("{} by torch's own trace; gputop: {:.0f}%: both agree", name, one.gputop_pct)
    else:
        text = filled("{} by torch's own trace; gputop: {:.0f}%: they disagree", name, one.gputop_pct)
    return Evidence(f"trace_{one.part}_pct", one.trace_pct, "%", text)


def kernels(job: WalkedJob) -> Iterator[Evidence]:
    """Kernels by count, the most frequent by name, and how many launches could be saved."""
    if job.trace is None or (found := job.trace.reading.launched) is None:
        return
    reading = job.trace.reading
    each, per, metric = (reading.steps, " a step", "_per_step") if reading.steps else (1, "", "")
    often = sorted(reading.kernels, key=lambda one: -one.count)[:NAMED]
    names = joined(", ", (filled("{:.0f} × {}", one.count / each, kernel_name(one.name)) for one in often))
    yield Evidence(f"trace_kernels{metric}", round(found.kernels / each, 1), "", filled("kernels{} in torch's own trace: {}", per, names))
    graphs = "there are CUDA graphs already" if found.graphs else "a CUDA graph launches all kernels by one call"
    text = filled("of these torch.compile could fuse into others, at most; {}", graphs)
    yield Evidence(f"trace_fusible{metric}", round(found.fusible / each, 1), "", text)


def waits(job: WalkedJob) -> tuple[str, tuple[Evidence, ...]]:
    """(words about the call that waits most, and its line if stacks were asked for; evidence: the calls)."""
    if job.trace is None or not (calls := job.trace.reading.sync_calls):
        return "", ()
    reading = job.trace.reading
    at = filled(" in {}", reading.sync_lines[0].name) if reading.sync_lines else ""
    words = filled("; by torch's own trace {} waits most{}", calls[0].name, at)
    rate = round(sum(one.count for one in calls) * 1e9 / max(1, reading.span_ns), 1)
    return words, (Evidence("trace_waits_per_s", rate, "/s", filled("waits for the GPU in torch's own trace: {}", _listed(calls))),)


def _listed(rows: Sequence[Named]) -> str:
    whole = max(1, sum(one.total_ns for one in rows))
    return joined(", ", (filled("{} {:.0f}%", kernel_name(one.name), 100 * one.total_ns / whole) for one in rows[:NAMED]))


def cause_of(job: WalkedJob) -> tuple[str, float] | None:
    """(cause on the GPU's side, its share of the loss) by a trace of the GPU; None if the trace explains less than half of it.

    Waits for the GPU are a storm, and launches too many, by the prices that they have elsewhere.
    """
    if job.trace is None or (idle := job.trace.reading.idle) is None or not job.is_supplied:
        return None
    reading, whole = job.trace.reading, idle.total_pct
    span_s = reading.span_ns / 1e9
    waits_made, launched = sum(one.count for one in reading.sync_calls), reading.launched.kernels if reading.launched is not None else 0
    is_storm = 0.01 * idle.sync_pct * span_s <= policy.TURN_S * waits_made
    is_launched = 0.01 * (idle.launch_pct + idle.host_pct) * span_s <= policy.LIGHT_COST_S * launched
    parts = {
        "sync-storm": idle.sync_pct if is_storm else 0.0, "h2d-transfer": idle.copy_pct,
        "small-kernels": idle.launch_pct + idle.host_pct if is_launched else 0.0,
    }  # fmt: skip
    cause = max(parts, key=parts.__getitem__)
    return (cause, parts[cause] / whole) if whole >= 100 * policy.LOST and parts[cause] >= policy.HALF * whole else None


def unexplained(job: WalkedJob) -> tuple[str, tuple[Evidence, ...]]:
    """(words, evidence): what the trace has of a loss that neither gputop nor the trace explains."""
    if job.trace is None:
        return "", ()
    reading = job.trace.reading
    rows, kind = (reading.kernels, "kernel") if reading.kernels else (reading.operators, "operator")
    parts = tuple(_idle(reading))
    dearest = filled(", dearest {} {}", kind, kernel_name(rows[0].name)) if rows else ""
    return filled("; torch's own trace explains nothing either{}", dearest), parts


def _idle(reading: TraceReading) -> Iterator[Evidence]:
    if reading.gpu_busy_pct is not None:
        yield Evidence("trace_gpu_busy_pct", reading.gpu_busy_pct, "%", "of the time the GPU worked, by torch's own trace")
    for name, words in IDLE_WORDS.items():
        share = 0.0 if reading.idle is None else getattr(reading.idle, name)
        if share >= 100 * policy.LITTLE:
            yield Evidence(f"trace_idle_{name}", share, "%", filled("of the time it was idle and {}", words))
    if reading.optimizer_pct >= 100 * policy.LITTLE:
        yield Evidence("trace_optimizer_pct", reading.optimizer_pct, "%", "in the optimizer, by torch's own trace")
