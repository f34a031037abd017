"""Colours by meaning: the themes, and which colour each of them gives to what is drawn.

The default themes draw on the terminal's own background, which nobody knows. Of the terminal's sixteen colours almost none can be read in
every palette (bright black, red and blue of Solarized, blue of xterm), so these themes use the fixed ones of the 256, which no palette
changes; sixteen are all that some terminals have. Every meaning has a glyph or a word besides its colour.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.style import Style
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from gputop.tui.draw.frame import FRAME
from gputop.tui.draw.lanes import SHADED

if TYPE_CHECKING:
    from textual.app import App

Palette = dict[str, Style]

# The dark colours have a luminance of at least 0.28, the light theme's of at most 0.166: contrast 4.5 on Dracula's background, the lightest
# dark one, and on Solarized Light's, the darkest light one.
_DARK = {
    "": "", "title": "bold", "dim": "color(247)", "accent": "color(80)", "good": "color(114)", "warn": "color(221)",
    "crit": "bold color(203)", "lane": "color(74)", "lane2": "color(114)", "lane3": "color(176)", "cursor": "reverse",
    "selected": "reverse", "head": "bold underline", "running": "color(114)", "runnable": "bold color(203)", "disk": "color(75)",
    "memory": "color(177)", "throttled": "color(215)", "blocked": "color(176)", "ahead": "color(247)", "stopped": "reverse",
    "computing": "color(114)", "waiting-data": "color(221)", "waiting-gpu": "color(80)", "transfer": "color(111)",
    "starving": "bold color(203)", "incident": "bold color(221)", "culprit": "color(208)", "shade": "on color(237)", "frame": "color(241)",
}  # fmt: skip
_LIGHT = _DARK | {
    "dim": "color(242)", "accent": "color(25)", "good": "color(22)", "warn": "color(94)", "crit": "bold color(160)", "lane": "color(25)",
    "lane2": "color(22)", "lane3": "color(90)", "running": "color(22)", "runnable": "bold color(160)", "disk": "color(26)",
    "memory": "color(90)", "throttled": "color(94)", "blocked": "color(90)", "ahead": "color(242)", "computing": "color(22)",
    "waiting-data": "color(94)", "waiting-gpu": "color(24)", "transfer": "color(26)", "starving": "bold color(160)",
    "incident": "bold color(94)", "culprit": "color(127)", "shade": "on color(254)", "frame": "color(248)",
}  # fmt: skip
# Blue against orange, after Okabe and Ito, made light enough for every dark background: with every common kind of colour blindness they
# differ.
_COLOUR_BLIND = _DARK | {
    "good": "#56b4e9", "warn": "#f0e442", "crit": "bold #e69f00", "lane": "#56b4e9", "lane2": "#12b585", "lane3": "#d18ab0",
    "running": "#56b4e9", "computing": "#56b4e9", "runnable": "bold #e69f00", "starving": "bold #e69f00", "disk": "#79a8ff",
    "memory": "#d18ab0", "throttled": "#f0e442", "blocked": "#d18ab0", "waiting-data": "#f0e442", "waiting-gpu": "#12b585",
    "transfer": "#79a8ff", "incident": "bold #f0e442", "culprit": "#d18ab0",
}  # fmt: skip
# Of the 256, too: a fourth of the bytes of 24 bits.
_NIGHT = _DARK | {
    "": "color(189)", "title": "bold color(189)", "dim": "color(146)", "accent": "color(117)", "good": "color(150)",
    "warn": "color(223)", "crit": "bold color(211)", "lane": "color(111)", "lane2": "color(150)", "lane3": "color(183)",
    "running": "color(150)", "computing": "color(150)", "runnable": "bold color(211)", "starving": "bold color(211)",
    "disk": "color(111)", "memory": "color(218)", "throttled": "color(216)", "blocked": "color(183)", "ahead": "color(146)",
    "waiting-data": "color(223)", "waiting-gpu": "color(116)", "transfer": "color(81)", "incident": "bold color(223)",
    "culprit": "color(216)", "shade": "on color(236)", "frame": "color(60)",
}  # fmt: skip
# Where sixteen colours are all there is: those of them that can be told from every palette's background.
_SIXTEEN_DARK = _DARK | {
    "dim": "", "accent": "cyan", "good": "green", "warn": "yellow", "crit": "bold bright_red", "lane": "cyan", "lane2": "green",
    "lane3": "magenta", "running": "green", "runnable": "bold bright_red", "disk": "bright_blue", "memory": "magenta",
    "throttled": "yellow", "blocked": "magenta", "ahead": "", "computing": "green", "waiting-data": "yellow", "waiting-gpu": "cyan",
    "transfer": "bright_blue", "starving": "bold bright_red", "incident": "bold yellow", "culprit": "bold magenta",
    "shade": "", "frame": "",
}  # fmt: skip
_SIXTEEN_LIGHT = _SIXTEEN_DARK | {
    "accent": "blue", "good": "", "warn": "magenta", "crit": "bold red", "lane": "blue", "lane2": "", "running": "", "computing": "",
    "runnable": "bold red", "starving": "bold red", "disk": "blue", "throttled": "magenta", "waiting-data": "magenta",
    "waiting-gpu": "blue", "transfer": "blue", "incident": "bold magenta",
}  # fmt: skip

DARK, LIGHT, COLOUR_BLIND, NIGHT = "gputop-dark", "gputop-light", "gputop-colour-blind", "gputop-night"
HEAT_LEVELS = 7  # steps of how busy a GPU is: meanings ``heat1`` (least) to ``heat7`` of numbers, ``cell1`` to ``cell7`` of cells
TINT = 0.75  # part of the background in the tint of a cell of the heat map (a choice)
CONTRAST = 4.5  # least contrast of text and its background (WCAG 2, level AA)
CONTRAST_OF_SIXTEEN = 3.0  # where there are sixteen colours alone: of large text and of graphics (WCAG 2, level AA); none reaches more
_SHADE = 0.12  # part of the warning's colour in the background of an incident: seen, and no bar is lost on it
_ATTRIBUTES = ("bold", "underline", "reverse")
_SPECS = {DARK: _DARK, LIGHT: _LIGHT, COLOUR_BLIND: _COLOUR_BLIND, NIGHT: _NIGHT}
_TRUE_COLOURS = ("truecolor", "24bit")  # values of COLORTERM


def themes() -> list[Theme]:
    """The themes to register."""
    # Frames are drawn in the primary colour; xterm's blue cannot be seen on black.
    dark, light = replace(BUILTIN_THEMES["ansi-dark"], primary="ansi_cyan"), BUILTIN_THEMES["ansi-light"]
    return [
        replace(dark, name=DARK),
        replace(light, name=LIGHT),
        replace(dark, name=COLOUR_BLIND),
        Theme(name=NIGHT, primary="#89b4fa", secondary="#94e2d5", warning="#f9e2af", error="#f38ba8", success="#a6e3a1",
              accent="#cba6f7", foreground="#cdd6f4", background="#1e1e2e", surface="#313244", panel="#45475a"),
    ]  # fmt: skip


def default_theme(environ: Mapping[str, str] = os.environ) -> str:
    """The theme where none was chosen: one that paints its background, where the terminal has 24 bits for a colour."""
    return NIGHT if environ.get("COLORTERM", "").lower() in _TRUE_COLOURS and not environ.get("NO_COLOR") else DARK


def colours_of(app: App[Any]) -> Palette:
    """The styles of an application's theme in its terminal."""
    return palette(app.theme, coloured=not app.no_color, sixteen=app.console.color_system == "standard")


@lru_cache(maxsize=8)
def palette(theme: str, coloured: bool = True, sixteen: bool = False) -> Palette:
    """The styles of a theme; those of Textual's own themes are made of its colours. Without colour bold, underline and reverse are left."""
    builtin = BUILTIN_THEMES.get(theme)
    is_dark = theme != LIGHT if builtin is None else builtin.dark
    specs = _SPECS.get(theme) or (_DARK if builtin is None else derived(builtin))
    if sixteen:
        specs = _SIXTEEN_DARK if is_dark else _SIXTEEN_LIGHT
    specs = specs | heated(specs, None if sixteen else _background(theme)) | flaming(specs)
    shade = specs["shade"]
    shaded = {f"{name}{SHADED}": f"{spec} {shade}" for name, spec in specs.items() if name not in ("shade", FRAME)}
    specs = shaded | specs  # a cell of the heat map has a shade of its own
    if not coloured:
        specs = {name: " ".join(word for word in spec.split() if word in _ATTRIBUTES) for name, spec in specs.items()}
    return {name: Style.parse(spec.strip()) for name, spec in specs.items()}


def _background(theme: str) -> Color | None:
    """The background that a theme paints; None where it is the terminal's own."""
    known = {one.name: one for one in (*BUILTIN_THEMES.values(), *themes())}
    if theme not in known or "ansi" in (known[theme].background or ""):
        return None
    return Color.parse(known[theme].to_color_system().generate()["background"])


def _colour(spec: str) -> str:
    """The colour in a look; empty for the terminal's own."""
    return "".join(word for word in spec.split() if word not in _ATTRIBUTES)


def heated(specs: Mapping[str, str], back: Color | None = None) -> dict[str, str]:
    """Colours of how busy a GPU is, from that of trouble over that of a warning to that of all well.

    Numbers (``heat1`` …) have these three. Cells (``cell1`` …) have blends of them, where it is known how they look; on a known background
    ``back`` the rest of a cell has a tint, so that the cells are an area.
    """
    named = [_colour(specs[name]) for name in ("crit", "warn", "good")]
    steps = range(1, HEAT_LEVELS + 1)
    numbers = {f"heat{step}": colour for step, colour in zip(steps, (named[0],) * 3 + (named[1],) * 2 + (named[2],) * 2, strict=True)}
    bad, middle, good = (_known(colour) for colour in named)
    if bad is None or middle is None or good is None:
        return numbers | {f"cell{step}": numbers[f"heat{step}"] for step in steps}
    half, is_brief = (HEAT_LEVELS - 1) / 2, not any(colour.startswith("#") for colour in named)
    mixed = [bad.blend(middle, at / half) if at <= half else middle.blend(good, at / half - 1.0) for at in range(HEAT_LEVELS)]
    mixed = mixed if back is None else [readable(colour, back) for colour in mixed]
    shown = [_brief(colour) if is_brief else colour.hex6 for colour in mixed]
    tints = ["" if back is None else f" on {colour.blend(back, TINT).hex6}" for colour in mixed]
    found = numbers | {f"cell{step}": colour + tint for step, colour, tint in zip(steps, shown, tints, strict=True)}
    if back is not None:
        lit = [_lit(colour, colour.blend(back, TINT), middle).hex6 for colour in mixed]
        found |= {f"cell{step}{SHADED}": f"{colour} on {tint}" for step, colour, tint in zip(steps, shown, lit, strict=True)}
    return found


def _lit(colour: Color, tint: Color, by: Color) -> Color:
    """The tint with as much of another colour, up to `_SHADE`, as leaves the cell's own one visible on it."""
    steps = (tint.blend(by, _SHADE * part / 4) for part in (4, 3, 2, 1))
    return next((one for one in steps if contrast(colour, one) >= CONTRAST_OF_SIXTEEN), tint)


def _known(name: str) -> Color | None:
    """The colour of that name; None for one that each terminal shows as it likes."""
    colour = RichColor.parse(name or "default")
    return None if colour.is_system_defined else Color(*colour.get_truecolor())


def _brief(colour: Color) -> str:
    """The nearest of the 256, which takes a fourth of the bytes of 24 bits."""
    return f"color({RichColor.parse(colour.hex6).downgrade(ColorSystem.EIGHT_BIT).number})"


def flaming(specs: Mapping[str, str]) -> dict[str, str]:
    """Colours of a flame graph's frames by kind, filled: those of a warning, of lanes, and none."""
    kinds = {"own": "warn", "library": "lane", "kernel": "lane3"}
    filled = {f"flame-{kind}": f"reverse {_colour(specs[name])}".strip() for kind, name in kinds.items()}
    return filled | {"flame-thread": "reverse", "flame-chosen": "bold underline"}


def derived(theme: Theme) -> dict[str, str]:
    """Meaning -> colour of one of Textual's themes, each made readable on its background; a theme of the terminal's colours has ours."""
    if theme.name.startswith("ansi-"):
        return _DARK if theme.dark else _LIGHT
    named = theme.to_color_system().generate()
    back = Color.parse(named["background"])
    ink = Color.parse(theme.foreground or ("#ffffff" if theme.dark else "#000000"))
    colours = {name: Color.parse(named[name]) for name in ("primary", "secondary", "success", "warning", "error", "accent")}
    told = {name: readable(colour, back).hex6 for name, colour in colours.items()} | {"dim": readable(ink.blend(back, 0.5), back).hex6}
    return _DARK | {
        "dim": told["dim"], "ahead": told["dim"], "accent": told["accent"], "good": told["success"], "warn": told["warning"],
        "crit": f"bold {told['error']}", "lane": told["primary"], "lane2": told["success"], "lane3": told["secondary"],
        "running": told["success"], "computing": told["success"], "runnable": f"bold {told['error']}", "starving": f"bold {told['error']}",
        "disk": told["primary"], "memory": told["secondary"], "throttled": told["warning"], "blocked": told["secondary"],
        "waiting-data": told["warning"], "waiting-gpu": told["accent"], "transfer": told["primary"],
        "incident": f"bold {told['warning']}", "culprit": told["accent"], "frame": ink.blend(back, 0.65).hex6,
        "shade": f"on {back.blend(colours['warning'], _SHADE).hex6}",
    }  # fmt: skip


def readable(colour: Color, back: Color) -> Color:
    """The colour, moved as far towards white or black as its contrast on ``back`` needs."""
    towards = Color.parse("#ffffff" if contrast(Color.parse("#ffffff"), back) > contrast(Color.parse("#000000"), back) else "#000000")
    steps = (colour.blend(towards, part / 10) for part in range(11))
    return next((one for one in steps if contrast(one, back) >= CONTRAST), towards)


def contrast(one: Color, other: Color) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Color) -> float:
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
