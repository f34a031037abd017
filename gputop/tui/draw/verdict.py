"""The verdict: a sentence, and the evidence under it."""

from __future__ import annotations

from gputop.diagnosis.model import Verdict
from gputop.text import clean
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
    first: Line = [(head + cause, colour), (fit(f"  {clean(verdict.headline)}", max(0, view.width - len(head + cause))), "title")]
    if trouble:
        return [first, [(fit(f"   {clean(trouble)}", view.width), "crit")]]
    keys = keys if view.width >= WIDE else ""
    room = view.width - len(keys) - 1
    return [first, [(fit(f"   {clean(verdict.detail or offer)}", room), ""), (f" {keys}", "accent")]]
