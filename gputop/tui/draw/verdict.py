"""The verdict: a sentence, and the evidence under it."""

from __future__ import annotations

import re

from gputop.diagnosis.model import Verdict
from gputop.text import clean
from gputop.text import fit
from gputop.tui.draw import Line
from gputop.tui.view import View

COLOURS = {"high": "crit", "medium": "crit", "low": "warn", "info": "good"}
KEYS = "[e] why  [s] stacks"
WIDE = 110
"""From here on the keys have room beside the evidence; the last line names them anyway."""
_PIDS = re.compile(r"\((\d+)((?:, \d+)+)(?: and (\d+) more)?\)")
_NAMES = re.compile(r"(\w[^,;()]* \(\d[^()]*\))((?:, (?:[^,;()]+ \(\d[^()]*\)|others|short-lived processes))+)")
_WORDS = re.compile(r" but not running| of the time| of the last \d+ s")
_PID = re.compile(r" \(\d+(?: and \d+ more)?\)")


def lines(verdict: Verdict, view: View, trouble: str = "", offer: str = "", keys: str = KEYS) -> list[Line]:
    """Two lines. ``trouble`` (the collector died, say) and ``offer`` (a demo where there is no GPU) come before the detail."""
    colour = COLOURS.get(verdict.severity, "title")
    mark = "▲" if colour in ("crit", "warn") else "●"
    head = f" {mark} {verdict.symptom.upper()}"
    cause = "" if verdict.cause == "none" else f" ← {verdict.cause}"
    room = max(0, view.width - len(head + cause))
    first: Line = [(head + cause, colour), (fit(f"  {brief(verdict.headline, room - 2)}", room), "title")]
    if trouble:
        return [first, [(fit(f"   {clean(trouble)}", view.width), "crit")]]
    keys = keys if view.width >= WIDE else ""
    room = view.width - len(keys) - 1
    detail = brief(verdict.detail or offer, room - 3)
    if len(detail) > room - 3:
        detail = _PID.sub("", detail)  # they stand in the table too, the numbers only here
    return [first, [(fit(f"   {detail}", room), ""), (f" {keys}", "accent")]]


def brief(text: str, room: int) -> str:
    """A sentence that is longer than ``room`` columns with what it can spare left out: further pids, further names, set phrases."""
    text = clean(text)
    for pattern, instead in ((_PIDS, _fewer_pids), (_NAMES, _fewer_names), (_WORDS, lambda _: "")):
        if len(text) > room:
            text = pattern.sub(instead, text)
    return text


def _fewer_pids(found: re.Match[str]) -> str:
    return f"({found[1]} and {found[2].count(',') + int(found[3] or 0)} more)"


def _fewer_names(found: re.Match[str]) -> str:
    count = len(_PID.findall(found[2]))
    return f"{found[1]} and {f'{count} more' if count == found[2].count(', ') else 'others'}"
