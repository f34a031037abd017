"""The verdict in full: its path, culprits, fixes, evidence, lost time and incidents.

The box of `e` shows the whole, the dashboard as much as it has room for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec import Struct

from gputop.findings.outlook import told
from gputop.findings.path import factor, lost_of, reading, tree, who, without
from gputop.findings.verdict import CAUSES, SEVERITY_COLOURS, STAGE_INDENT, Evidence, Fix, Verdict, WhatIf, page_of
from gputop.system.text import cell_width, clean, cut, fit
from gputop.tui.draw import Line, folded, room_for, size

if TYPE_CHECKING:
    from gputop.findings.verdict import Incident, Ledger
    from gputop.stream.survey import IncidentSpan

LAST_EXPERIMENTS = 4  # experiments that are listed
LAST_INCIDENTS = 8  # incidents that are listed, the newest first
AMOUNT = 16  # columns of a number of the evidence, with its unit
ASSUMES = 56  # columns of a prediction, and at least as many of what it assumes
TWO_COLUMNS = 170  # columns from which what to do and the evidence stand side by side
MOST_WIDE = 116  # columns of a sentence: longer lines are hard to read
LEAST_WRAPPED = 16  # columns; the box folds what is wider
_CAUSE_COLUMNS = max(map(len, CAUSES)) + 2
_GAP = 3  # columns between two columns of text
Block = list[Line]


class MomentFindings(Struct):
    """Findings at the moment shown."""

    verdict: Verdict
    ledger: Ledger
    incidents: Sequence[Incident | IncidentSpan]
    what_if: Sequence[WhatIf] | None  # None: not computed yet
    growths: Sequence[Incident]
    experiments: Sequence[tuple[int, str]]  # (t_ns, what it found)
    clock: Callable[[int], str]  # the time of day at t_ns


def page(found: MomentFindings, width: int, rows: int) -> list[Line]:
    """The whole page: in two columns if there is room, without empty lines if that brings the fixes onto one screen."""
    if width >= TWO_COLUMNS:
        left = (width - _GAP) // 2
        blocks = [cause(found.verdict, left), *action(found, left), *more(found.verdict)], background(found, width - _GAP - left)
        return beside(spaced(blocks[0]), spaced(blocks[1]), left)
    narrow = min(width, MOST_WIDE)
    first = [cause(found.verdict, narrow), *action(found, narrow)]
    is_tight = len(spaced(first)) > rows
    if is_tight:
        first[0] = cause(found.verdict, narrow, with_detail=False)
    lines = [line for block in first for line in block] if is_tight else spaced(first)
    return [*lines, [], *spaced([*more(found.verdict), *background(found, narrow)])]


def below(found: MomentFindings, width: int, rows: int) -> list[Line]:
    """At most ``rows`` lines for the dashboard, which shows the verdict already."""
    if width >= TWO_COLUMNS:
        left = (width - _GAP) // 2
        first, second = action(found, left), background(found, width - _GAP - left)
        if not first and len(second) > 1:
            first, second = second[:1], second[1:]
        return beside(packed(first, rows), packed(second, rows), left)[:rows]
    narrow = min(width, MOST_WIDE)
    return packed([*action(found, narrow), *background(found, narrow)], rows)


def action(found: MomentFindings, width: int) -> list[Block]:
    """The path to the cause, the way of a server's requests, the culprits, the fixes and the next test."""
    verdict = found.verdict
    blocks = (
        walk(verdict, width), asked(verdict, width), culprits(verdict, width), fixes(verdict.fixes, width), next_test(verdict, width),
    )  # fmt: skip
    return [block for block in blocks if block]


def background(found: MomentFindings, width: int) -> list[Block]:
    """Blocks about effects of changes, evidence, victims, growing memory, experiments, lost time, incidents."""
    verdict = found.verdict
    blocks = [
        measured(verdict, width), what_if(found.what_if or (), width), victims(verdict, width),
        *(growth(one, width) for one in found.growths), experiments(found, width), ledger(found.ledger), incidents(found, width),
    ]  # fmt: skip
    return [block for block in blocks if block]


# how blocks become lines


def spaced(blocks: Sequence[Block]) -> list[Line]:
    """The blocks with an empty line between them."""
    return [line for i, block in enumerate(blocks) for line in ([[], *block] if i else block)]


def packed(blocks: Sequence[Block], rows: int) -> list[Line]:
    """The first blocks in at most ``rows`` lines; without empty lines where more fit then, and no heading without its text."""
    lines = spaced(blocks) if len(spaced(blocks)) <= rows else [line for block in blocks for line in block]
    lines = lines[:rows]
    while lines and (not lines[-1] or lines[-1][0][1] == "head"):
        lines = lines[:-1]
    return lines


def beside(left: Sequence[Line], right: Sequence[Line], width: int) -> list[Line]:
    """Two columns of text, the left one ``width`` wide."""
    out: list[Line] = []
    folds = [row for line in left for row in folded(line, width)]
    for one, other in zip_longest(folds, right, fillvalue=()):
        used = sum(cell_width(text) for text, _ in one)
        out.append([*one, (" " * (width + _GAP - used), ""), *other])
    return out


# the blocks; the first line of each is its heading


def cause(verdict: Verdict, width: int, with_detail: bool = True) -> Block:
    """The verdict in words; it has no heading."""
    named = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    return [
        [(f"{verdict.symptom.upper()}{named}", SEVERITY_COLOURS.get(verdict.severity, "title")),
         (f"   severity {verdict.severity}, confidence {100 * verdict.confidence:.0f} %", "dim")],
        *wrapped(verdict.headline, width, "title"),
        *(wrapped(verdict.detail, width, "") if with_detail else []),
    ]  # fmt: skip


def walk(verdict: Verdict, width: int) -> Block:
    """The walk to the cause, and what would come back without it."""
    out: Block = [[("path to the cause", "head")]] if verdict.path else []
    for indent, line in tree(verdict.path):
        out += wrapped(line, width, "", f"  {indent}")
    named = [who(one.pid, one.name) for one in verdict.culprits]
    told = without(verdict.cause, named, verdict.regain_gpu_s, verdict.speedup_max)
    return out + wrapped(told, width, "title", "  ")


def asked(verdict: Verdict, width: int) -> Block:
    """The way of a request through an inference server: where the time to the first token goes."""
    way = verdict.requests.way if verdict.requests is not None else ()
    out: Block = [[("the way of a request, to its first token", "head")]] if way else []
    for one in way:
        first, *rest = wrapped(clean(one.line()), width, "warn" if one.slow else "", "  ") or [[]]
        out += [first, *([(" " * STAGE_INDENT, ""), *line] for line in rest)]
    return out


def culprits(verdict: Verdict, width: int) -> Block:
    """The culprits, each with the CPU time that it took."""
    took = [who(one.pid, one.name) + ("" if one.cpu_s is None else f" {one.cpu_s:.1f} CPU s") for one in verdict.culprits]
    return [[("who takes it", "head")], *wrapped(" · ".join(took), width, "", "  ")] if took else []


def fixes(found: Sequence[Fix], width: int) -> Block:
    """The fixes, then where to look, numbered by the keys that copy a command."""
    out: Block = []
    number = 0
    for fix in found:
        head = [("where to look" if fix.look else "what to do", "head")]
        out += [head] if head not in out else []
        number += bool(fix.command)
        out += _fix(fix, number, width)
    return out


def next_test(verdict: Verdict, width: int) -> Block:
    """The cheapest test that distinguishes the cause from the next best one; its number follows those of the fixes."""
    if (test := verdict.next_test) is None:
        return []
    return [[("next test", "head")], *_fix(test, len(commands(verdict)), width)]


def _fix(fix: Fix, number: int, width: int) -> Block:
    """``number``: the key that copies its command."""
    mark = f"{number} " if fix.command else "• "
    first, *rest = wrapped(fix.text, width - len(mark), "")
    out: Block = [[(mark, "accent"), *first], *([(" " * len(mark), ""), *line] for line in rest)]
    return [*out, [(f"    {fix.command}", "accent")]] if fix.command else out


def more(verdict: Verdict) -> list[Block]:
    """The address of the page about the cause."""
    return [[[("more: ", "dim"), (url, "accent")]]] if (url := page_of(verdict.cause)) else []


def commands(verdict: Verdict) -> list[str]:
    """Commands that can be copied, in the order of `fixes`, and of the next test."""
    tests = () if verdict.next_test is None else (verdict.next_test,)
    return [clean(fix.command) for fix in (*verdict.fixes, *tests) if fix.command]


def measured(verdict: Verdict, width: int) -> Block:
    """The numbers behind a verdict, and how long a step takes; of a server its requests."""
    pace = verdict.requests or verdict.step
    step = [] if pace is None else wrapped(pace.told(), width, "", "  ")
    out = [*evidence(verdict.evidence, width), *step]
    return [[("evidence", "head")], *out] if out else []


def evidence(found: Sequence[Evidence], width: int) -> Block:
    """Each number with what it is; without a heading."""
    out: Block = []
    for item in found:
        first, *rest = wrapped(item.text, width - AMOUNT, "") or [[]]
        out.append([(f"{_amount(item):>{AMOUNT - 2}}  ", "title" if item.value is not None else "dim"), *first])
        out += [[(" " * AMOUNT, ""), *line] for line in rest]
    return out


def _amount(item: Evidence) -> str:
    if item.value is None:
        return "not measured"
    if item.unit in ("B", "B/s"):
        return f"{size(item.value)}{item.unit[1:]}"
    return reading(item.value, item.unit)


def what_if(found: Sequence[WhatIf], width: int) -> Block:
    """Predicted effects of changes, each with its band, and its assumptions if there is room."""
    out: Block = [[("what if", "head")]] if found else []
    for one in found:
        line, room = f"  {told(one, closely=True)}", width - ASSUMES
        out.append([(fit(line, ASSUMES), ""), (cut(one.assumes, room), "dim")] if room >= ASSUMES else [(cut(line, width), "")])
    return out


def victims(verdict: Verdict, width: int) -> Block:
    """The victims, each with its role; who gives a GPU the work of requests is no trainer."""
    roles = {"trainer": "engine"} if verdict.requests is not None else {}
    named = ((one, roles.get(one.role, one.role)) for one in verdict.victims)
    told = " · ".join(f"{who(one.pid, one.name)}{'' if role in one.name.lower() else f', {role}'}" for one, role in named)
    return [[("who suffers", "head")], *wrapped(told, width, "", "  ")] if told else []


def growth(one: Incident, width: int) -> Block:
    """Memory that grows."""
    return [
        [(one.cause, SEVERITY_COLOURS[one.severity]), (f"   severity {one.severity}", "dim")],
        *wrapped(one.headline, width, "title"), *wrapped(one.detail, width, ""), *evidence(one.evidence, width), *fixes(one.fixes, width),
    ]  # fmt: skip


def experiments(found: MomentFindings, width: int) -> Block:
    """Outcomes of the last experiments up to the moment shown."""
    out: Block = [[("experiments", "head")]] if found.experiments else []
    for t_ns, result in found.experiments[-LAST_EXPERIMENTS:]:
        out += wrapped(f"{found.clock(t_ns)} {result}", width, "", "  ")
    return out


def ledger(found: Ledger) -> Block:
    """The GPU time that was lost, by cause."""
    if not found.gpu_total_s:
        return []
    share = 100 * found.gpu_lost_s / found.gpu_total_s
    out: Block = [[("GPU time lost since the start", "head")]]
    out.append([(f"  {lost_of(found.gpu_lost_s, found.gpu_total_s)} without work ({share:.0f} %)", "title")])
    bounds = {one.cause: factor(one.speedup_max) for one in found.regains()}
    for cause, lost_s in sorted(found.by_cause.items(), key=lambda item: -item[1]):
        if round(lost_s, 1):  # less is 0.0 s
            bound = f"   without it {bounds[cause]}" if bounds.get(cause) else ""
            out.append([(f"  {cause:<28}{lost_s:>9.1f} s{100 * lost_s / max(found.gpu_lost_s, 1e-9):>6.0f} %{bound}", "")])
    if len(bounds) > 1 and (told := factor(found.speedup_of_all())):
        out.append([(f"  without any of these {told} (their seconds add up, the factors do not)", "dim")])
    return out


def incidents(found: MomentFindings, width: int) -> Block:
    """The last incidents, the newest first."""
    out: Block = [[("incidents (n, N jump to them)", "head")]] if found.incidents else []
    for one in reversed(found.incidents[-LAST_INCIDENTS:]):
        start = found.clock(one.start_ns)
        end = "now" if one.end_ns is None else found.clock(one.end_ns)
        colour = SEVERITY_COLOURS.get(one.severity, "")
        cause, headline = f"{one.cause:<{_CAUSE_COLUMNS}}", cut(one.headline, width - _CAUSE_COLUMNS - 20)
        out.append([(f"  {start}–{end:<8} ", "dim"), (cause, colour), (headline, "")])
    return out


def wrapped(text: str, width: int, style: str, indent: str = "") -> list[Line]:
    """The text in lines of at most ``width`` columns; all but the first are indented further. In very few columns it stays whole."""
    if width < LEAST_WRAPPED:
        return [[(indent + text, style)]] if text else []
    rest = f"{indent}  " if indent else ""
    lines = textwrap.wrap(text, room_for(text, width), initial_indent=indent, subsequent_indent=rest) if text else []
    return [[(line, style)] for line in lines]
