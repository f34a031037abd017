"""The verdict: a sentence, and the evidence under it."""

from __future__ import annotations

from collections.abc import Sequence

from gputop.diagnosis.model import Verdict
from gputop.diagnosis.report import brief, without_pids
from gputop.system.text import fit
from gputop.tui.draw import Line
from gputop.tui.draw.keys import Key
from gputop.tui.view import View

COLOURS = {"high": "crit", "medium": "crit", "low": "warn", "info": "good"}
KEYS: tuple[Key, ...] = (("[e]", "why", "explain"), ("[s]", "stacks", "stacks"))
WIDE = 110
"""From here on the keys have room beside the evidence; the last line names them anyway."""


def lines(verdict: Verdict, view: View, trouble: str = "", offer: str = "", keys: Sequence[Key] = KEYS) -> list[Line]:
    """Two lines. ``trouble`` (the collector died, say) and ``offer`` (a demo where there is no GPU) come before the detail."""
    colour = COLOURS.get(verdict.severity, "title")
    mark = "▲" if colour in ("crit", "warn") else "●"
    head = f" {mark} {verdict.symptom.upper()}"
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    room = max(0, view.width - len(head + cause))
    first: Line = [(head + cause, colour), (fit(f"  {brief(verdict.headline, room - 2)}", room), "title")]
    if trouble:
        return [first, [(fit(f"   {trouble}", view.width), "crit")]]
    offered = "  ".join(f"{key} {word}" for key, word, _ in keys) if view.width >= WIDE else ""
    room = view.width - len(offered) - 1
    detail = brief(verdict.detail or offer, room - 3)
    if len(detail) > room - 3:
        detail = without_pids(detail)  # they stand in the table too, the numbers only here
    return [first, [(fit(f"   {detail}", room), ""), (f" {offered}", "accent")]]
