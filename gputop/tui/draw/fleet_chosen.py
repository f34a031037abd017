"""The chosen node on the screen over many nodes: its fix in a line, and below the nodes its verdict, lanes, way to the cause and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import NamedTuple

from gputop.findings import message
from gputop.findings.policy import QUARTER
from gputop.findings.verdict import SEVERITY_COLOURS
from gputop.fleet.overview import NodeRow, Second
from gputop.system.text import cell_width, clean, cut, fit
from gputop.tui.draw import Line, Span, duration
from gputop.tui.draw.edges import COPY_KEY
from gputop.tui.draw.lanes import merge

BARS = "▁▂▃▄▅▆▇█"
LABEL = 17  # columns of a lane's name and its value now
LEAST_LANE = 10  # columns below which no lane is drawn
LEAST_TOLD = 12  # columns below which the words beside a command are left out
HIGH = 0.5  # share of a host's time from which a lane of what is short is marked


class _Lane(NamedTuple):
    name: str
    value: Callable[[Second], float | None]  # of a second
    is_bad: Callable[[float], bool]


LANES = (
    _Lane("GPU work", lambda one: one.worked, lambda share: share <= 1.0 - QUARTER),
    _Lane("run queue", lambda one: one.runnable, lambda share: share >= HIGH),
    _Lane("PSI io", lambda one: one.psi_io, lambda share: share >= HIGH),
    _Lane("CPU", lambda one: one.cpu, lambda _share: False),
)


def fix_line(row: NodeRow, width: int) -> Line:
    """The fix for the node; empty where nothing is to be done. Its command is for that node, not for this machine."""
    fix = row.sight.summary.fix if row.sight.summary is not None and row.sight.is_seen else None
    if fix is None:
        return []
    marked: list[Span] = [(" ? look ", "warn")] if fix.look else [(" ► ", "good")]
    marked.append((f"{clean(row.host, 40)}: ", "dim"))
    room = max(0, width - sum(cell_width(text) for text, _ in marked))
    if not fix.command:
        return [*marked, (cut(fix.text, room), "")]
    keys = f" {COPY_KEY[0]} {COPY_KEY[1]}"
    command = cut(clean(fix.command), max(0, room - len(keys)))
    rest = room - cell_width(command) - len(keys)
    told = fit(f"  {fix.text}", rest) if rest > LEAST_TOLD else " " * max(0, rest)
    return [*marked, (command, "accent"), (told, "dim"), (keys if rest >= 0 else "", "accent")]


def lines(row: NodeRow, past: Sequence[Second], seconds: int, width: int) -> list[Line]:
    """Lines about the node, by worth: its verdict, of a server the way of a request, lanes of its last seconds, the way to the cause, the
    numbers; none while it is silent.

    ``past``: its seconds, the last ``len(past)`` of ``seconds``.
    """
    summary = row.sight.summary if row.sight.is_seen else None
    if summary is None:
        return []
    verdict = summary.verdict
    head = f"─ {clean(row.host, 40)} "
    out: list[Line] = [[(fit(f"{head}{'─' * max(0, width - cell_width(head))}", width), "dim")]]
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    colour = SEVERITY_COLOURS.get(verdict.severity, "title")
    named = f" {'▲' if colour in ('crit', 'warn') else '●'} {verdict.symptom.upper()}{cause}  "
    out.append([(cut(named, width), colour), (cut(verdict.headline, max(0, width - cell_width(named))), "title")])
    out += _fitting(message.requests(summary.requests, width), width)
    out += _lanes(past, seconds, width)
    return [*out, *_fitting((*message.way(summary.path, width), *message.why(summary.evidence, width)), width)]


def _fitting(found: Iterable[Line], width: int) -> list[Line]:
    """The lines that are no wider than the screen."""
    return [line for line in found if cell_width(_text(line)) <= width]


def _text(line: Sequence[Span]) -> str:
    return "".join(text for text, _ in line)


def _lanes(past: Sequence[Second], seconds: int, width: int) -> list[Line]:
    cells = min(width - LABEL, max(LEAST_LANE, len(past)))
    if width - LABEL < LEAST_LANE or not past:
        return []
    each = cell_s(cells, len(past))
    cells = min(cells, ceil(len(past) / each))
    out: list[Line] = []
    for one in LANES:
        if any(one.value(second) is not None for second in past[-cells * each :]):
            now = one.value(past[-1])
            told = "–" if now is None else f"{100 * now:.0f} %"
            out.append([(f"  {one.name:<9} {told:>4} ", "dim"), *lane(past, seconds, cells, each, one)])
    return [*out, [(f"  {'':<14} the last {duration(min(len(past), cells * each))}", "dim")]] if out else []


def work_lane(past: Sequence[Second], seconds: int, cells: int, span_s: int) -> list[Span]:
    """Share of time that the node's GPUs worked for training, over about ``span_s``."""
    return lane(past, seconds, cells, cell_s(cells, span_s), LANES[0])


def lane(past: Sequence[Second], seconds: int, cells: int, each: int, shown: _Lane) -> list[Span]:
    """Means of a share over ``each`` seconds a cell. Cells are absolute slices of time, so they keep their content as they move."""
    forgotten = seconds - len(past)
    begun = (seconds - 1) // each  # number of the newest cell
    out: list[Span] = []
    for cell in range(begun - cells + 1, begun + 1):
        within = past[max(0, cell * each - forgotten) : max(0, (cell + 1) * each - forgotten)]
        known = [share for one in within if (share := shown.value(one)) is not None]
        share = sum(known) / len(known) if known else None
        out.append((" ", "") if share is None else (bar(share), "crit" if shown.is_bad(share) else "lane"))
    return merge(out)


def cell_s(cells: int, span_s: int) -> int:
    """Seconds of a cell, for so many of them to show about ``span_s``."""
    return max(1, ceil(span_s / max(1, cells)))


def bar(share: float) -> str:
    """A bar as high as the share."""
    return BARS[max(0, min(7, int(share * 8)))]
