"""The comparison of runs (`gputop.findings.compared`) as text."""

from __future__ import annotations

from collections.abc import Iterator

from gputop.findings import message
from gputop.findings.compared import NOT_SLOWER, SLOWER, TRIFLE_PCT, UNDECIDED, WORK, JobChange, Slower
from gputop.system.colour import Line
from gputop.system.text import clean, figure

_WORDS = {SLOWER: ("SLOWER", "crit"), NOT_SLOWER: ("not slower", "good"), UNDECIDED: ("undecided whether slower", "warn")}
LEAST_SHOWN = 0.01  # of a step: a part of less that did not change is not printed
_CALLED = {WORK: "the GPU works"}


def slower_lines(found: Slower, width: int) -> Iterator[Line]:
    """Lines of the answer, each job's change with its parts and noise, and each run."""
    if found.answer is not None:
        word, colour = _WORDS[found.answer]
        yield [(f"{word} by more than {found.limit_pct:g} %", colour)]
    if found.reason:
        yield from message.wrapped(found.reason, width)
    for job in found.jobs:
        yield []
        yield from _job(job, width)
    yield []
    for run in found.runs:
        pace = run.reason if run.steps_per_s is None else f"{figure(run.steps_per_s)} steps a second, {run.stretches} stretches"
        yield [(clean(f"{run.side:<7} {run.path}: "), "dim"), (clean(f"{run.name}, {pace}"), "")]
    for text in found.differs:
        yield from message.wrapped(f"not the same: {text}", width, "warn", indent=0)


def _job(one: JobChange, width: int) -> Iterator[Line]:
    yield [(clean(one.name), "title")]
    if one.change_pct is None or one.before_ms is None or one.after_ms is None:
        yield from message.wrapped(one.reason or "its pace is not known", width)
        return
    more = f"a step takes {one.change_pct:+.1f} % ({one.low_pct:+.1f} to {one.high_pct:+.1f} % in 95 of 100 cases)"
    yield from message.wrapped(more, width)
    yield [(f"  {'of a step, ms':<28}{'before':>12}{'after':>12}{'change':>12}", "dim")]
    yield _row("all", one.before_ms, one.after_ms, one.change_pct)
    for part in one.parts:
        if abs(part.change_pct) >= TRIFLE_PCT or max(part.before_ms, part.after_ms) >= LEAST_SHOWN * one.before_ms:
            yield _row(_CALLED.get(part.part, part.part), part.before_ms, part.after_ms, part.change_pct)
    yield from message.labelled("noise", ((f"{noise.kind} {noise.change_pct:+.1f} %: {noise.text}", "") for noise in one.noise), width)


def _row(title: str, before: float, after: float, change_pct: float) -> Line:
    colour = "crit" if change_pct >= TRIFLE_PCT else "good" if change_pct <= -TRIFLE_PCT else ""
    return [(f"  {clean(title):<28}{figure(before):>12}{figure(after):>12}", ""), (f"{change_pct:>+10.1f} %", colour)]
