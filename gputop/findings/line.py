"""The state in one line, for the status bars of tmux, byobu, waybar and the like.

The most important part comes first, for bars cut the end. ``#`` is left out of names: tmux would read it as a format.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec
from msgspec import Struct

from gputop.findings.verdict import LOOKING, Fix, Verdict
from gputop.model.board import Board
from gputop.system.text import clean

LOOKS, IDLE, FINE = "looking", "idle", "fine"  # kinds in addition to the severities of a fault
MARKS = {LOOKS: ("…", "..."), IDLE: ("–", "-"), FINE: ("✓", "ok")}
FAULT = ("▲", "!")
COLOURS = {LOOKS: "default", IDLE: "default", FINE: "green", "low": "yellow", "medium": "yellow", "high": "red"}  # of tmux
MOST = 100  # characters: wider than any status bar gives (a choice)
MOST_NAMED = 2  # culprits


class StatusLine(Struct, frozen=True):
    """One moment in one line."""

    kind: str  # `LOOKS`, `IDLE`, `FINE`, or the severity of a fault
    parts: tuple[str, ...]  # the most important first
    tooltip: str = ""  # lines with headline, detail and fixes
    percentage: int | None = None  # mean utilization of the GPUs; None: not measured

    def text(self, ascii_only: bool = False) -> str:
        """``▲ cpu-contention 58% lost · GPU 42% · fluent-bit``."""
        mark = MARKS.get(self.kind, FAULT)[ascii_only]
        joined = (" | " if ascii_only else " · ").join(self.parts)
        text = clean(f"{mark} {joined}").replace("#", "")[:MOST]
        return text.encode("ascii", "replace").decode() if ascii_only else text

    def form(self, form: str, ascii_only: bool = False) -> str:
        """The line for a bar: ``plain``, ``tmux`` with its colours, ``waybar`` as an object for its ``"return-type": "json"``."""
        if form == "tmux":
            return f"#[fg={COLOURS.get(self.kind, 'red')}]{self.text(ascii_only)}#[default]"
        if form == "waybar":
            tooltip = "\n".join(map(clean, self.tooltip.split("\n")))
            said = {"text": escape(self.text(ascii_only)), "tooltip": escape(tooltip), "class": self.kind}
            return msgspec.json.encode(said | ({} if self.percentage is None else {"percentage": self.percentage})).decode()
        return self.text(ascii_only)


def line_of(board: Board, verdict: Verdict) -> StatusLine:
    """The line for the last seconds: the verdict, and the GPUs' utilization."""
    util = [value for gpu in board.gpus.values() if (value := gpu.number("util_pct")) is not None]
    mean = round(sum(util) / len(util)) if util else None
    gpus = "GPU" if len(board.gpus) == 1 else f"{len(board.gpus)} GPUs"
    busy = "no GPU" if not board.gpus else f"{gpus} {'?' if mean is None else f'{mean}%'}"
    kind, steps = kind_of(verdict.symptom, verdict.severity), verdict.step
    pace: tuple[str, ...] = () if steps is None else (f"{steps.per_s:.3g} steps/s",)
    if (requests := verdict.requests) is not None:
        told = ((requests.tokens_per_s, "{:.0f} tokens/s"), (requests.waiting, "{} waiting"))
        pace = tuple(form.format(number) for number, form in told if number is not None)
    if kind in MARKS:
        words = {LOOKS: (LOOKS,), IDLE: (IDLE,)}.get(kind, () if verdict.cause == "none" else (verdict.cause,))
        return StatusLine(kind, (*words, busy, *pace), _tooltip(verdict.headline, verdict.detail, verdict.fixes), mean)
    lost = "" if verdict.lost_pct is None else f" {verdict.lost_pct:.0f}% lost"
    names = ", ".join(one.name for one in verdict.culprits[:MOST_NAMED])
    return StatusLine(
        kind, (f"{fault_of(verdict.symptom, verdict.cause)}{lost}", busy, *pace, *([names] if names else [])),
        _tooltip(verdict.headline, verdict.detail, verdict.fixes), mean,
    )  # fmt: skip


def kind_of(symptom: str, severity: str) -> str:
    """`LOOKS`, `IDLE`, `FINE`, or the severity of a fault."""
    if symptom == LOOKING:
        return LOOKS
    if severity == "info":
        return IDLE if symptom == "idle" else FINE
    return severity


def fault_of(symptom: str, cause: str) -> str:
    """The cause; the symptom if the cause is unknown."""
    return symptom if cause in ("none", "unexplained") else cause


def _tooltip(headline: str, detail: str, fixes: Sequence[Fix]) -> str:
    said = [headline, detail, *(f"{fix.text}: {fix.command}" if fix.command else fix.text for fix in fixes)]
    return "\n".join(part for part in said if part)
