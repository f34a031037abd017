"""`e`: the verdict with its evidence and fixes, lost GPU time by cause, and the incidents so far."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.binding import Binding

from gputop.diagnosis import Verdict
from gputop.diagnosis.model import CAUSES
from gputop.session.session import Session
from gputop.system.text import cut, figure
from gputop.tui.box import Box
from gputop.tui.draw import Line, room_for, time_of_day
from gputop.tui.draw.edges import VERDICT_COLOURS

if TYPE_CHECKING:
    from gputop.diagnosis import Incident, Ledger
    from gputop.session.survey import Episode

LAST_INCIDENTS = 8  # incidents that are listed, the newest first
_CAUSE_COLUMNS = max(map(len, CAUSES)) + 2


class WhyScreen(Box):
    """Why, as of the moment shown."""

    TITLE = "why"
    BINDINGS = [Binding("e", "dismiss", "close", show=False)]

    def lines(self) -> Sequence[Line]:
        """Verdict, evidence, processes, fixes, lost time by cause, the last incidents."""
        verdict = self.session.verdict_at(self.view.at_ns)
        ledger, incidents = self.context.happened(self.view.at_ns)
        width = min(self.text_width, 116)
        return [
            *_verdict(verdict, width),
            *_people(verdict),
            *_fixes(verdict, width),
            *_ledger(ledger),
            *_incidents(self.session, incidents[-LAST_INCIDENTS:], width),
        ]


def _verdict(verdict: Verdict, width: int) -> list[Line]:
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    out: list[Line] = [
        [(f"{verdict.symptom.upper()}{cause}", VERDICT_COLOURS.get(verdict.severity, "title")),
         (f"   severity {verdict.severity}, confidence {100 * verdict.confidence:.0f} %", "dim")],
        *_wrapped(verdict.headline, width, "title"),
        *_wrapped(verdict.detail, width, ""),
        [],
    ]  # fmt: skip
    if verdict.step is not None:
        out += _wrapped(verdict.step.told(), width, "")
    if verdict.evidence:
        out.append([("evidence", "head")])
    for item in verdict.evidence:
        value = "not measured" if item.value is None else f"{figure(item.value)} {item.unit}"
        out.append([(f"  {item.metric:<28}", "dim"), (f"{value:>16}  ", "title"), (item.text, "")])
    return out


def _people(verdict: Verdict) -> list[Line]:
    out: list[Line] = []
    if verdict.victims:
        out += [[], [("who suffers", "head")]]
        out += [[(f"  {victim.pid:>8}  {victim.name} ({victim.role})", "")] for victim in verdict.victims]
    if verdict.culprits:
        out += [[], [("who takes it", "head")]]
    for culprit in verdict.culprits:
        cpu = "" if culprit.cpu_s is None else f"  {culprit.cpu_s:.1f} CPU s"
        out.append([(f"  {culprit.pid:>8}  {culprit.name}{cpu}", "")])
    return out


def _fixes(verdict: Verdict, width: int) -> list[Line]:
    out: list[Line] = [[], [("what to do", "head")]] if verdict.fixes else []
    for fix in verdict.fixes:
        out += _wrapped(f"• {fix.text}", width, "")
        if fix.command:
            out.append([(f"    {fix.command}", "accent")])
    return out


def _ledger(ledger: Ledger) -> list[Line]:
    if not ledger.gpu_total_s:
        return []
    share = 100 * ledger.gpu_lost_s / ledger.gpu_total_s
    out: list[Line] = [[], [("GPU time lost since the start", "head")]]
    out.append([(f"  {ledger.gpu_lost_s:.1f} of {ledger.gpu_total_s:.1f} GPU seconds without work ({share:.0f} %)", "title")])
    for cause, lost_s in sorted(ledger.by_cause.items(), key=lambda item: -item[1]):
        if lost_s > 0:
            out.append([(f"  {cause:<28}{lost_s:>9.1f} s{100 * lost_s / max(ledger.gpu_lost_s, 1e-9):>6.0f} %", "")])
    return out


def _incidents(session: Session, incidents: Sequence[Incident | Episode], width: int) -> list[Line]:
    out: list[Line] = [[], [("incidents (n, N jump to them)", "head")]] if incidents else []
    return out + [_incident(session, incident, width) for incident in reversed(incidents)]


def _incident(session: Session, incident: Incident | Episode, width: int) -> Line:
    start = time_of_day(session.unix_s(incident.start_ns))
    end = "now" if incident.end_ns is None else time_of_day(session.unix_s(incident.end_ns))
    head, cause = f"  {start}–{end:<8} ", f"{incident.cause:<{_CAUSE_COLUMNS}}"
    return [(head, "dim"), (cause, VERDICT_COLOURS.get(incident.severity, "")), (cut(incident.headline, width - 36), "")]


def _wrapped(text: str, width: int, style: str) -> list[Line]:
    return [[(line, style)] for line in textwrap.wrap(text, room_for(text, width))] if text else []
