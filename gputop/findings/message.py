"""The shape of a finding in lines, as of a good compiler's message: the verdict, the way to its cause, the fix, why, a lane, what next.

    ▲ input-bound ← cpu-contention  (high, 18 GPU s lost)
      GPU 0 lost 18.1 of 35.0 s: train.py (18445) waits for its data
      way   train.py (18445) waits 49 % of the time for worker 1 (18448)
      fix   chrt --idle --all-tasks --pid 0 18469
      why   72.2 %  2 of 2 workers wanted a CPU and had none

Each line is spans of text and meaning (`gputop.system.colour`).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from gputop.findings.path import reading, tree
from gputop.findings.verdict import SEVERITY_COLOURS, STAGE_INDENT, Evidence, Fix, PathStep, Requests
from gputop.system.colour import Line
from gputop.system.text import cell_width, clean

INDENT = 2  # columns before what belongs to a finding
LABEL = 6  # columns of a label: way, fix, why …
BARS = "▁▂▃▄▅▆▇█"


def head(what: str, severity: str | None, about: str = "", before: str = "") -> Line:
    """The first line: a mark, what was found, and in brackets what it costs. ``severity``: None before anything is judged."""
    colour = "dim" if severity is None else SEVERITY_COLOURS.get(severity, "title")
    mark = "…" if severity is None else "▲" if colour in ("crit", "warn") else "●"
    return [(before, "dim"), (f"{mark} {clean(what)}", colour), (f"  ({clean(about)})" if about else "", "dim")]


def over(what: str, about: str = "", before: str = "") -> Line:
    """The first line of what has ended."""
    return [(before, "dim"), (f"✓ {clean(what)}", "good"), (f"  ({clean(about)})" if about else "", "dim")]


def wrapped(text: str, width: int, style: str = "", indent: int = INDENT) -> Iterator[Line]:
    """The text, in lines of at most ``width`` columns; none of an empty one."""
    for line in _wrap(clean(text), max(indent + 20, width), " " * indent, " " * indent):
        yield [(line, style)]


def labelled(label: str, rows: Iterable[tuple[str, str]], width: int, colour: str = "dim") -> Iterator[Line]:
    """Rows of (text, meaning), each wrapped, beside a label that stands once."""
    start = INDENT + LABEL
    for i, (text, style) in enumerate(rows):
        indent = start + len(text) - len(text.lstrip(" └"))
        lines = _wrap(clean(text.lstrip(" ")), max(20, width - start), rest=" " * (indent - start)) or [""]
        first = " " * (len(text) - len(text.lstrip(" ")))
        for j, line in enumerate(lines):
            shown = label if i == j == 0 else ""
            yield [(f"{'':<{INDENT}}{shown:<{LABEL}}", colour), (first * (j == 0) + line, style)]


def way(path: Sequence[PathStep], width: int) -> Iterator[Line]:
    """The path to the cause, each step deeper than the one before."""
    yield from labelled("way", ((f"{indent}{line}", "") for indent, line in tree(path)), width)


def requests(found: Requests | None, width: int) -> Iterator[Line]:
    """The way of a request through an inference server, a row for each part; none of another program."""
    rows = [] if found is None else [(one.line(), "warn" if one.slow else "") for one in found.way]
    for i, (text, style) in enumerate(rows):
        first, *rest = _wrap(clean(text), max(20, width - INDENT - LABEL), rest=" " * (STAGE_INDENT + 2)) or [""]
        yield [(f"{'':<{INDENT}}{'asks' if not i else '':<{LABEL}}", "dim"), (first, style)]
        yield from ([(f"{'':<{INDENT + LABEL}}{line}", style)] for line in rest)


def fixes(found: Sequence[Fix], width: int) -> Iterator[Line]:
    """Each fix: its command, which is never broken, and what it does. What only looks comes last, and is labelled so."""
    for i, fix in enumerate(sorted(found, key=lambda one: one.look)):
        label, colour = ("look", "warn") if fix.look else ("fix" if not i else "or", "good")
        if fix.command:
            yield [(f"{'':<{INDENT}}{label:<{LABEL}}", colour), (clean(fix.command), "accent")]
        yield from labelled("" if fix.command else label, [(fix.text, "")], width, colour)


def next_test(found: Fix | None, width: int) -> Iterator[Line]:
    """The next test, where the cause is not clear: its command, and what it distinguishes."""
    if found is not None:
        if found.command:
            yield [(f"{'':<{INDENT}}{'test':<{LABEL}}", "warn"), (clean(found.command), "accent")]
        yield from labelled("" if found.command else "test", [(found.text, "")], width, "warn")


def why(evidence: Sequence[Evidence], width: int) -> Iterator[Line]:
    """Each number with its unit, and what it says."""
    rows = [(_value(one), one.text or one.metric.replace("_", " ")) for one in evidence]
    room = max((cell_width(value) for value, _ in rows), default=0)
    for i, (value, text) in enumerate(rows):
        label = "why" if not i else ""
        lines = _wrap(clean(text), max(20, width - INDENT - LABEL - room - 2)) or [""]
        yield [(f"{'':<{INDENT}}{label:<{LABEL}}", "dim"), (f"{value:<{room}}", "title"), (f"  {lines[0]}", "")]
        yield from ([(f"{'':<{INDENT + LABEL + room + 2}}{line}", "")] for line in lines[1:])


def _wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """The text in lines of at most ``width`` columns, broken between words alone: names have hyphens."""
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _value(one: Evidence) -> str:
    return "not measured" if one.value is None else clean(reading(one.value, one.unit))


def lane(points: Sequence[tuple[float, float]], spans: Sequence[tuple[float, float | None]], width: int) -> Iterator[Line]:
    """The GPUs' utilization, in %, over all the points' time, and a line over the times of ``spans`` (begin, end), when it was lost."""
    columns = width - INDENT - LABEL
    if len(points) < 2 or columns < 10:
        return
    first, last = points[0][0], points[-1][0]
    columns = min(columns, len(points))
    cells: list[list[float]] = [[] for _ in range(columns)]

    def column(at: float) -> int:
        return min(columns - 1, max(0, int((at - first) * columns / (last - first or 1.0))))

    for at, value in points:
        cells[column(at)].append(value)
    means = [sum(cell) / len(cell) if cell else None for cell in cells]
    over = {x for begin, end in spans for x in range(column(begin), column(last if end is None else end) + 1)}
    bars = "".join(" " if mean is None else BARS[min(7, max(0, int(mean / 100.0 * 8)))] for mean in means)
    label = [(f"{'':<{INDENT}}{'lane':<{LABEL}}", "dim")]
    line: list[tuple[str, str]] = []
    for x, bar in enumerate(bars):
        style = "crit" if x in over else "good"
        if line and line[-1][1] == style:
            line[-1] = (line[-1][0] + bar, style)
        else:
            line.append((bar, style))
    yield [*label, *line]
    under = "".join("▔" if x in over else " " for x in range(columns)).rstrip()
    told = f"GPU utilization over {last - first:.0f} s" + (", ▔ while it lasted" if over else "")
    yield [(f"{'':<{INDENT + LABEL}}", ""), (under, "crit")] if under else []
    yield from labelled("", [(told, "dim")], width)


def onward(steps: Sequence[tuple[str, str]], indent: int = INDENT) -> Iterator[Line]:
    """What to do next: commands, and what each does."""
    room = max((len(command) for command, _ in steps), default=0)
    for i, (command, what) in enumerate(steps):
        label, told = "next" if not i else "", f"  {what}" if what else ""
        yield [(f"{'':<{indent}}{label:<{LABEL}}", "dim"), (f"{clean(command):<{room}}", "accent"), (told, "")]
