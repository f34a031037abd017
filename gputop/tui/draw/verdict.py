"""The verdict: a sentence, and the evidence under it."""

from __future__ import annotations

from gputop.diagnosis.brief import brief
from gputop.diagnosis.brief import without_pids
from gputop.diagnosis.model import Verdict
from gputop.text import fit
from gputop.tui.draw import Line
from gputop.tui.view import View

COLOURS = {"high": "crit", "medium": "crit", "low": "warn", "info": "good"}
KEYS = "[e] why  [s] stacks"
WIDE = 110
"""From here on the keys have room beside the evidence; the last line names them anyway."""


def lines(verdict: Verdict, view: View, trouble: str = "", offer: str = "", keys: str = KEYS) -> list[Line]:
    """Two lines. ``trouble`` (the collector died, say) and ``offer`` (a demo where there is no GPU) come before the detail."""
    colour = COLOURS.get(verdict.severity, "title")
    mark = "▲" if colour in ("crit", "warn") else "●"
    head = f" {mark} {verdict.symptom.upper()}"
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    room = max(0, view.width - len(head + cause))
    first: Line = [(head + cause, colour), (fit(f"  {brief(verdict.headline, room - 2)}", room), "title")]
    if trouble:
        return [first, [(fit(f"   {trouble}", view.width), "crit")]]
    keys = keys if view.width >= WIDE else ""
    room = view.width - len(keys) - 1
    detail = brief(verdict.detail or offer, room - 3)
    if len(detail) > room - 3:
        detail = without_pids(detail)  # they stand in the table too, the numbers only here
    return [first, [(fit(f"   {detail}", room), ""), (f" {keys}", "accent")]]
