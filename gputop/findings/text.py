"""Explanations as text: `gputop explain` and `gputop diff`, the goodbye of a watch, and the plot."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from time import localtime, strftime
from typing import Any, NamedTuple

from msgspec.structs import astuple

from gputop.findings import message
from gputop.findings.explanation import Booked, Dated, Episode, Explanation, Said, StepMs, Trained
from gputop.findings.money import GpuHourPrice, money
from gputop.findings.outlook import WHAT_IF
from gputop.findings.outlook import sentence as what_if_sentence
from gputop.findings.path import amount, factor, lost_of, who, without
from gputop.findings.trouble import heading, is_fault, span_words
from gputop.findings.verdict import LOOKING, SEVERITY_COLOURS, Culprit, Step, best_fix
from gputop.model.frame import Header
from gputop.model.identity import FIELDS, Identity
from gputop.system.colour import Line
from gputop.system.text import clean, figure

Steps = Sequence[tuple[str, str]]  # (command, what it does)
WIDTH = 100  # columns in a pipe or a file
LEAST_WIDTH, MOST_WIDTH = 40, 120  # columns on a terminal: what is longer is no easier to read
LEAST_SHARE = 0.005  # least share of the workers' time that is printed
_NAMED = 8  # culprits of an incident that are named; on a large host dozens share the blame
LEAST_PARTING = 0.05  # least share of the loss of a cause in a goodbye; a choice
MOST_PARTING = 3  # causes of a goodbye, and culprits of each; a choice
NAMED = 8  # trainers with a printed container, pod or job; a choice
LEAST_BOOKED_S = 0.05  # least GPU seconds of a cause that are printed: less is 0.0 s
LEAST_LOST = 0.0005  # least share of the GPUs' time that is printed: less is 0.0 %


def explain_lines(
    found: Explanation, ongoing: bool = True, width: int = WIDTH, points: Sequence[tuple[float, float]] = (), onward: Steps = ()
) -> Iterator[Line]:
    """Lines of verdict, lost GPU time by cause, and each incident with evidence and fixes. ``ongoing``: more frames may follow, so
    incidents without an end still go on. ``points``: (Unix time, mean utilization in %) of the GPUs; ``onward``: what is next."""
    verdict, worst = found.verdict, _worst(found)
    lasting = [(one.start_unix_s, one.end_unix_s) for one in found.incidents if one.cause == verdict.cause]
    yield message.head(_named(_symptom(verdict).upper(), verdict.cause), _severity(verdict, worst))
    yield from message.wrapped(verdict.headline, width, "title")
    yield from message.wrapped(verdict.detail, width)
    yield from message.way(verdict.path, width)
    if worst is not None:
        yield from message.requests(worst.requests, width)
        yield from _remedy(worst, width)
    else:
        yield from message.next_test(verdict.next_test, width)
    yield from message.lane(points, lasting, width)
    yield from message.labelled("step", _step(verdict), width)
    yield from message.labelled("time", _workers(found.workers), width)
    if told := what_if_sentence(found.what_if).removeprefix(WHAT_IF):
        yield from message.labelled("if", [(told, "")], width)
    if verdict.help_url:
        yield from message.labelled("more", [(verdict.help_url, "")], width)
    yield from message.onward(onward)
    yield []
    yield from ledger_lines(found.ledger)
    yield from _trained(found.trainers, width)
    for incident in found.incidents:
        yield []
        yield from _incident(incident, "still going on" if ongoing else "to the end", width, is_above=incident is worst)


def _worst(found: Explanation) -> Episode | None:
    """The incident that the verdict is about; None without one."""
    verdict = found.verdict
    return next((one for one in found.incidents if (one.cause, one.headline) == (verdict.cause, verdict.headline)), None)


def _named(symptom: str, cause: str) -> str:
    return symptom if cause == "none" else f"{symptom} ← {cause}"


def _severity(verdict: Said, worst: Episode | None) -> str | None:
    """The severity of the verdict, which is that of its incident; None if nothing was judged."""
    return None if verdict.symptom is None else "info" if worst is None else worst.severity


def _remedy(one: Episode, width: int) -> Iterator[Line]:
    """Lines of fixes, evidence, culprits, and what would come back without them."""
    yield from message.fixes(one.fixes, width)
    yield from message.next_test(one.next_test, width)
    yield from message.why(one.evidence, width)
    yield from message.labelled("by", _culprits(one.culprits), width)
    culprits = [who(culprit.pid, culprit.name) for culprit in one.culprits]
    if told := without(one.cause, culprits, one.regain_gpu_s, one.speedup_max):
        yield from message.labelled("gain", [(told, "")], width)


def _trained(trainers: Sequence[Trained], width: int) -> Iterator[Line]:
    """Lines with the owners of the trainers, if a container, a pod, a Slurm job or a rendezvous identifies them."""
    told = [(one, _identity(one)) for one in trainers]
    named = [(one, whose) for one, whose in told if whose.brief() or (whose.training or "~")[0] != "~"]
    for one, whose in named[:NAMED]:
        parts = (whose.brief(), whose.training and f"training {whose.training}", whose.user and f"user {whose.user}")
        yield from message.wrapped(f"{one.name} ({one.pid}): {', '.join(filter(None, parts))}", width, indent=0)
    if len(named) > NAMED:
        yield [(f"… {len(named) - NAMED} more trainers (--json)", "dim")]


def _identity(one: Trained) -> Identity:
    """Identity from a file, which is not trusted: values that are no texts are left out."""
    found: dict[str, Any] = {name: text for name in FIELDS if isinstance(text := one.identity.get(name), str)}
    return Identity(**found)


def _symptom(verdict: Said) -> str:
    return LOOKING if verdict.symptom is None else verdict.symptom


def _step(verdict: Said) -> Iterator[tuple[str, str]]:
    pace, parts = verdict.steps_per_s, verdict.step_ms
    if pace and parts:
        step = Step(pace, "", *astuple(parts))
        yield step.told(), ""


def _workers(states: dict[str, float]) -> Iterator[tuple[str, str]]:
    told = [f"{clean(word)} {100 * share:.0f}%" for word, share in states.items() if share >= LEAST_SHARE]
    if told:
        yield f"all workers: {', '.join(told)} of the time", ""


def ledger_lines(ledger: Booked) -> Iterator[Line]:
    """Lines of lost GPU seconds by cause, largest first, with the upper bound of the speed-up without each cause."""
    yield [(_lost(ledger), "title")]
    lost = ledger.gpu_lost_s
    if lost is None or not ledger.gpu_total_s:
        return
    bounds = {one.cause: one.speedup_max for one in ledger.regain if one.regain_gpu_s >= LEAST_BOOKED_S}
    for cause, seconds in sorted(ledger.by_cause.items(), key=lambda item: -item[1]):
        if seconds >= LEAST_BOOKED_S:
            bound = f"   without it {told}" if (told := factor(bounds.get(cause))) else ""
            yield [(f"  {clean(cause):<28}{seconds:>10.1f} s {100 * seconds / lost if lost else 0:>5.0f} %", ""), (bound, "good")]
    if len(bounds) > 1 and (told := factor(ledger.speedup_max)):
        yield [(f"  without any of these {told}", "good"), (" (bounds on the speed; their seconds add up, the factors do not)", "dim")]


def _lost(ledger: Booked, cost: str = "") -> str:
    """How much GPU time was lost, of how much. ``cost``: in money."""
    total, lost = ledger.gpu_total_s, ledger.gpu_lost_s
    if lost is None or not total:
        return "GPU time lost: none counted (no GPU is measured, or no job trained on one)"
    return f"GPU time lost: {lost_of(lost, total)} ({100 * lost / total:.0f} %{cost})"


def goodbye_lines(
    found: Explanation, header: Header, watched_s: float, price: GpuHourPrice | None, onward: Steps, width: int = WIDTH
) -> Iterator[Line]:
    """Lines for whoever leaves a watch of ``watched_s``: what was lost, the worst causes with culprits and fix, and what to do next
    (command, what it does)."""
    ledger = found.ledger
    parts = {cause: seconds for cause, seconds in ledger.by_cause.items() if seconds > 0.0}
    cents = price.cents(parts) if price else {}
    cost = f", {_cost(sum(cents.values()), price)}" if price and parts else ""
    yield [(clean(f"{header.host} was watched for {span_words(watched_s)}{' [SIMULATED GPU]' if header.simulated else ''}"), "dim")]
    yield [(_lost(ledger, cost), "title")]
    by_loss = sorted(parts, key=lambda cause: -parts[cause])
    least_s = max(LEAST_BOOKED_S, LEAST_PARTING * sum(parts.values()))
    named = [cause for cause in by_loss if parts[cause] >= least_s][:MOST_PARTING]
    worst = sorted(filter(is_fault, found.incidents), key=lambda one: -one.gpu_lost_s)
    for cause in named:
        whole = f"{parts[cause]:.1f} GPU s{f', {_cost(cents[cause], price)}' if price else ''}"
        yield from _parting(cause, whole, next((one for one in worst if one.cause == cause), None), width)
    for one in [one for one in worst if one.cause not in parts and one.end_unix_s is None][:MOST_PARTING]:
        yield from _parting(one.cause, "still there", one, width)
    yield from message.onward(onward, indent=0)


def _parting(cause: str, cost: str, worst: Episode | None, width: int) -> Iterator[Line]:
    """Lines of one cause: its cost, and the culprits and the fix of its worst incident."""
    culprits = [] if worst is None else [who(one.pid, one.name) for one in worst.culprits]
    more = f" and {len(culprits) - MOST_PARTING} more" if len(culprits) > MOST_PARTING else ""
    by = f", by {', '.join(culprits[:MOST_PARTING])}{more}" if culprits else ""
    severity = "low" if worst is None else worst.severity
    yield from message.wrapped(f"▲ {cause}: {cost}{by}", width, SEVERITY_COLOURS[severity], indent=0)
    if worst is None:
        return
    if not culprits:
        yield from message.wrapped(worst.headline, width)
    if (fix := best_fix(worst.fixes)) is not None:
        yield from message.fixes([fix], width)


def _cost(cents: int, price: GpuHourPrice) -> str:
    return f"{'' if cents else 'less than '}{money(max(1, cents) / 100, price.currency)}"


def _incident(incident: Episode, unended: str, width: int, is_above: bool) -> Iterator[Line]:
    end = unended if incident.end_unix_s is None else f"to {_clock(incident.end_unix_s)}"
    lost = incident.gpu_lost_s
    about = f"{incident.severity}{'' if not lost else f', {amount(lost)} GPU s lost'}{', see above' if is_above else ''}"
    when = f"#{incident.id} {_clock(incident.start_unix_s)} {end}  "
    yield message.head(heading(incident.symptom, incident, "←"), incident.severity, about, before=when)
    yield from message.wrapped(incident.headline, width, "title")
    if is_above:
        return
    yield from message.wrapped(incident.detail, width)
    yield from message.way(incident.path, width)
    yield from message.requests(incident.requests, width)
    yield from _remedy(incident, width)


def _culprits(ranked: Sequence[Culprit]) -> Iterator[tuple[str, str]]:
    """Rows of the culprits: the biggest takers by name, the others as a number."""
    named = ranked if len(ranked) <= _NAMED + 1 else ranked[:_NAMED]
    for one in named:
        yield f"{who(one.pid, one.name)}{_cpu_s(one.cpu_s)}", "culprit"
    if rest := ranked[len(named) :]:
        yield f"{len(rest)} more{_cpu_s(sum(one.cpu_s or 0.0 for one in rest) or None)}", "culprit"


def _cpu_s(seconds: float | None) -> str:
    return "" if seconds is None else f", {seconds:.1f} CPU s"


def diff_lines(names: Sequence[str], before: Explanation, after: Explanation, width: int = WIDTH) -> Iterator[Line]:
    """Lines of two explanations side by side: verdicts, lost GPU time by cause, steps, workers, incidents."""
    for name, found in zip(names, (before, after), strict=True):
        verdict = found.verdict
        what = _named(_symptom(verdict).upper(), verdict.cause)
        yield message.head(what, _severity(verdict, _worst(found)), before=clean(f"{name}: "))
        yield from message.wrapped(verdict.headline, width)
    shares = [found.ledger.lost_share for found in (before, after)]
    yield []
    yield _compared("share of GPU time lost", shares[0], shares[1], "title")
    parts = [found.ledger.cause_shares for found in (before, after)]
    most = {cause: max(part.get(cause, 0.0) for part in parts) for part in parts for cause in part}
    for cause in sorted((cause for cause, share in most.items() if share >= LEAST_LOST), key=lambda cause: -most[cause]):
        old, new = (part.get(cause, 0.0) if share is not None else None for part, share in zip(parts, shares, strict=True))
        yield _compared(f"  {cause}", old, new)
    yield _row("steps a second", *(found.verdict.steps_per_s for found in (before, after)))
    yield from _step_rows(*(found.verdict.step_ms for found in (before, after)))
    yield from _worker_rows(*(found.workers for found in (before, after)))
    yield _row("incidents", *(len(found.incidents) for found in (before, after)))


def dated_lines(heading: str, told: Sequence[Dated], width: int = WIDTH) -> Iterator[Line]:
    """Lines of a recording's markers: how experiments ended, messages of NCCL."""
    if told:
        yield from ([], [(clean(heading), "title")])
    for one in told:
        yield from message.wrapped(f"{_clock(one.unix_s)} {one.text}", width)


def _step_rows(before: StepMs | None, after: StepMs | None) -> Iterator[Line]:
    if before is None and after is None:
        return
    yield _row("a step, ms", *(sum(astuple(parts)) if parts else None for parts in (before, after)))
    for word in StepMs.__struct_fields__:
        old, new = (getattr(parts, word) if parts else None for parts in (before, after))
        yield _row(f"  {word.replace('_', ' ')}", old, new)


def _worker_rows(before: dict[str, float], after: dict[str, float]) -> Iterator[Line]:
    words = [word for word in {**before, **after} if max(before.get(word, 0.0), after.get(word, 0.0)) >= LEAST_SHARE]
    yield from [[("workers' time", "")]] if words else []
    for word in words:
        old, new = (states.get(word, 0.0) if states else None for states in (before, after))
        yield [(f"  {clean(word):<28}{_percent(old):>12}{_percent(new):>12}{_change(old, new):>12}", "")]


def _compared(title: str, old: float | None, new: float | None, style: str = "") -> Line:
    """A row of lost shares; less is good."""
    change = _change(old, new)
    colour = "good" if change.startswith("-") else "" if not change or float(change) == 0.0 else "crit"
    return [(f"{clean(title):<30}", style), (f"{_percent(old):>12}{_percent(new):>12}", ""), (f"{change:>12}", colour)]


def _row(title: str, old: float | None, new: float | None) -> Line:
    return [(f"{title:<30}{_number(old):>12}{_number(new):>12}", "")]


def plot(points: Sequence[tuple[float, float]], incidents: Sequence[Episode], width: int = WIDTH, height: int = 16) -> str:
    """Chart of the GPUs' mean utilization over time (seconds since the start, %), with the incidents below."""
    if not points:
        return "no GPU utilization in this stretch"
    first = points[0][0]
    line = [(x - first, y) for x, y in points]
    drawn = chart("GPU utilization [%], mean of all GPUs, over seconds", [line], 0.0, 100.0, width, height)
    marks = [f"  #{one.id} {clean(one.cause)} from {one.start_unix_s - first:.0f} s" for one in incidents]
    return "\n".join([drawn, *marks])


class Times(NamedTuple):
    """The x axis of a chart: first and last value, and the texts at its ticks."""

    first: float
    last: float
    texts: dict[float, str]


def chart(
    title: str,
    lines: Iterable[Sequence[tuple[float, float]]],
    low: float,
    high: float | None,
    width: int,
    height: int,
    times: Times | None = None,
) -> str:
    """Chart, as text, of lines through (x, y) points; y from ``low`` to ``high`` (None: by the values), x by ``times``."""
    import plotext

    figure = plotext.figure
    figure.clear.all()
    figure.plot_size(width, height)
    figure.theme("colorless")
    figure.title(title)
    for points in lines:
        signal = figure.signal([x for x, _ in points], [y for _, y in points], marker="hd")
        signal.lines(True)
        figure.draw(signal)
    if high:
        figure.ruler("y", "left").lim(low, high)
    if times:
        ruler = figure.ruler("x", "lower")
        ruler.lim(times.first, times.last)
        ruler.ticks(list(times.texts), list(times.texts.values()))
    return str(figure.build())


def without_colour(text: str) -> str:
    """The text without colour escape sequences."""
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def _clock(unix_s: float) -> str:
    return strftime("%H:%M:%S", localtime(unix_s))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _change(old: float | None, new: float | None) -> str:
    return "" if old is None or new is None else f"{round(100 * (new - old), 1) or 0.0:+.1f}"


def _number(value: float | None) -> str:
    return "–" if value is None else figure(value)
