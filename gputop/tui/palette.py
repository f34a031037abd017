"""Colours by meaning.

Most themes use the terminal's own sixteen colours and its own background: they fit every terminal, and cost a fifth of the
bytes of true colour. Every meaning has a glyph or a word beside its colour.
"""

from __future__ import annotations

from dataclasses import replace

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import BUILTIN_THEMES, Theme

from gputop.system.text import ascii_text

Palette = dict[str, Style]

_DARK = {
    "": "", "title": "bold", "dim": "bright_black", "accent": "cyan", "good": "green", "warn": "yellow", "crit": "bold bright_red",
    "lane": "cyan", "lane2": "green", "lane3": "magenta", "held": "bright_black", "cursor": "reverse", "selected": "reverse",
    "head": "bold underline", "running": "green", "runnable": "bold bright_red", "disk": "bright_blue", "memory": "bright_magenta",
    "throttled": "bright_yellow", "blocked": "magenta", "ahead": "bright_black", "stopped": "reverse", "computing": "green",
    "waiting-data": "yellow", "waiting-gpu": "cyan", "transfer": "blue", "starving": "bold bright_red", "incident": "bold yellow",
}  # fmt: skip
_LIGHT = _DARK | {
    "crit": "bold red", "warn": "dark_orange3", "accent": "blue", "lane": "blue", "starving": "bold red",
    "runnable": "bold red", "throttled": "dark_orange3", "waiting-data": "dark_orange3", "disk": "blue", "memory": "magenta",
    "incident": "bold dark_orange3",
}  # fmt: skip
# Blue against orange, after Okabe and Ito: with every common kind of colour blindness they differ.
_COLOUR_BLIND = _DARK | {
    "good": "#56b4e9", "warn": "#f0e442", "crit": "bold #e69f00", "lane": "#56b4e9", "lane2": "#009e73", "lane3": "#cc79a7",
    "running": "#56b4e9", "computing": "#56b4e9", "runnable": "bold #e69f00", "starving": "bold #e69f00", "disk": "#0072b2",
    "memory": "#cc79a7", "throttled": "#f0e442", "blocked": "#cc79a7", "waiting-data": "#f0e442", "waiting-gpu": "#009e73",
    "transfer": "#0072b2", "incident": "bold #f0e442",
}  # fmt: skip
_NIGHT = _DARK | {
    "dim": "#7f849c", "held": "#585b70", "accent": "#89dceb", "good": "#a6e3a1", "warn": "#f9e2af", "crit": "bold #f38ba8",
    "lane": "#89b4fa", "lane2": "#a6e3a1", "lane3": "#cba6f7", "running": "#a6e3a1", "computing": "#a6e3a1",
    "runnable": "bold #f38ba8", "starving": "bold #f38ba8", "disk": "#89b4fa", "memory": "#f5c2e7", "throttled": "#fab387",
    "blocked": "#cba6f7", "ahead": "#7f849c", "waiting-data": "#f9e2af", "waiting-gpu": "#94e2d5", "transfer": "#74c7ec",
    "incident": "bold #f9e2af",
}  # fmt: skip

_ATTRIBUTES = ("bold", "underline", "reverse")
_SPECS = {"gputop-dark": _DARK, "gputop-light": _LIGHT, "gputop-colour-blind": _COLOUR_BLIND, "gputop-night": _NIGHT}


def themes() -> list[Theme]:
    """The themes to register, the default first."""
    dark, light = BUILTIN_THEMES["ansi-dark"], BUILTIN_THEMES["ansi-light"]
    return [
        replace(dark, name="gputop-dark"),
        replace(light, name="gputop-light"),
        replace(dark, name="gputop-colour-blind"),
        Theme(name="gputop-night", primary="#89b4fa", secondary="#94e2d5", warning="#f9e2af", error="#f38ba8", success="#a6e3a1",
              accent="#cba6f7", foreground="#cdd6f4", background="#1e1e2e", surface="#313244", panel="#45475a"),
    ]  # fmt: skip


def palette(theme: str, coloured: bool = True) -> Palette:
    """The styles of a theme; Textual's own themes get the dark or the light ones. Without colour bold, underline and reverse are left."""
    builtin = BUILTIN_THEMES.get(theme)
    specs = _SPECS.get(theme, _DARK if builtin is None or builtin.dark else _LIGHT)
    if not coloured:
        specs = {name: " ".join(word for word in spec.split() if word in _ATTRIBUTES) for name, spec in specs.items()}
    return {name: Style.parse(spec) for name, spec in specs.items()}


class Ascii(LineFilter):
    """Turns what Textual draws by itself (borders, command palette, notifications) into ASCII."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - Textual's own
        """The segments in ASCII, of the same width."""
        return [Segment(ascii_text(text), style, control) for text, style, control in segments]
