"""A cast as an animated SVG: it plays wherever a picture is shown, with no script and no other file.

Each row of the terminal is a strip of all that it ever shows, side by side, moved by CSS in steps: a row that stays costs nothing. Bars are
shapes, which join whatever the font is. Who wants no motion, or cannot show it, sees the screen of one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from asciicast import BLANK, Cell
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME as THEME

CHAR, LINE = 8.4, 18  # px of a cell at the font size
_SIZE, _BASE = 14, 13.5  # px: the font, and its base line in a row
_EDGE, _BAR = 10, 34  # px around the terminal, and of the window's title
_FONT = "'Fira Code',Menlo,Consolas,'DejaVu Sans Mono',monospace"
_BARS = {char: (eighths + 1) / 8 for eighths, char in enumerate("▁▂▃▄▅▆▇█")}  # share of the row's height, from below
_RADIUS, _LAMPS = 8, ("#ff5f57", "#febc2e", "#28c840")

Frame = tuple[float, Sequence[Sequence[Cell]]]


def film(frames: Sequence[Frame], end_s: float, still_s: float, columns: int, rows: int, title: str) -> str:
    """The SVG of screens, each shown from its time (seconds) on; it begins anew at ``end_s``. Without motion it shows ``still_s``."""
    looks: dict[str, str] = {}
    strips = [_strip(y, _shown(frames, y), end_s, still_s, columns, looks) for y in range(rows)]
    width, height = columns * CHAR + 2 * _EDGE, rows * LINE + _BAR + _EDGE
    lamps = "".join(f'<circle cx="{18 + 18 * i}" cy="17" r="5.5" fill="{fill}"/>' for i, fill in enumerate(_LAMPS))
    style = "".join(f".{name}{{{look}}}" for look, name in looks.items()) + "".join(still for still, _, _ in strips)
    motion = "".join(motion for _, motion, _ in strips)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}">'
        f"<title>{escape(title)}</title>"
        f"<style>text{{font:{_SIZE}px {_FONT};white-space:pre;fill:{THEME.foreground_color.hex}}}"
        f"{style}@media (prefers-reduced-motion:no-preference){{"
        f".s{{animation-duration:{end_s:g}s;animation-iteration-count:infinite;animation-timing-function:step-end}}{motion}}}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="{_RADIUS}" fill="{THEME.background_color.hex}"/>{lamps}'
        f'<text x="{width / 2:g}" y="22" text-anchor="middle" fill-opacity=".7">{escape(title)}</text>'
        f'<svg x="{_EDGE}" y="{_BAR}" width="{columns * CHAR:g}" height="{rows * LINE}">'
        f"{''.join(body for _, _, body in strips)}</svg></svg>\n"
    )


def _shown(frames: Sequence[Frame], y: int) -> list[tuple[float, tuple[Cell, ...]]]:
    """What stands in a row, and since when: neighbours differ."""
    states: list[tuple[float, tuple[Cell, ...]]] = [(0.0, ())]
    for at, screen in frames:
        row = tuple(screen[y]) if y < len(screen) else ()
        while row and row[-1] == BLANK:
            row = row[:-1]
        if row != states[-1][1]:
            states = states[:-1] if states[-1][0] == at else states
            states.append((at, row))
    return states


def _strip(
    y: int, states: list[tuple[float, tuple[Cell, ...]]], end_s: float, still_s: float, columns: int, looks: dict[str, str]
) -> tuple[str, str, str]:
    """(CSS of its place without motion, CSS of its motion, its content); a content that comes again stands in the strip once."""
    places = {content: place for place, content in enumerate(dict.fromkeys(row for _, row in states if row), 1)}
    body = "".join(_content(row, place * columns * CHAR, y, looks) for row, place in places.items())
    if not body:
        return "", "", ""

    def moved(row: tuple[Cell, ...]) -> str:
        return f"{{transform:translateX({-places.get(row, 0) * columns * CHAR:g}px)}}"

    steps = "".join(f"{100 * at / end_s:.2f}%{moved(row)}" for at, row in states)
    still = next(row for at, row in reversed(states) if at <= still_s)
    return f".r{y}{moved(still)}", f"@keyframes k{y}{{{steps}}}.r{y}{{animation-name:k{y}}}", f'<g class="s r{y}">{body}</g>'


def _content(row: Iterable[Cell], left: float, y: int, looks: dict[str, str]) -> str:
    """A row at ``left``: its backgrounds, and its texts and bars."""
    backs, texts, x = "", "", 0
    for style, group in groupby(row, key=lambda cell: cell[1]):
        text = "".join(char for char, _ in group)
        fore, back = _colours(style)
        at, width = left + x * CHAR, len(text) * CHAR
        if back != THEME.background_color.hex:
            backs += f'<rect x="{at:g}" y="{y * LINE}" width="{width:g}" height="{LINE}" fill="{back}"/>'
        x += len(text)
        look = f"fill:{fore}{';font-weight:bold' if style.bold else ''}{';text-decoration:underline' if style.underline else ''}"
        name, bars = looks.setdefault(look, f"c{len(looks)}") if text.strip(" ") else "", ""
        for bar, run in groupby(enumerate(text), key=lambda cell: cell[1] if cell[1] in _BARS else ""):
            places, chars = zip(*run, strict=True)
            if bar:
                bars += _bar(bar, at + places[0] * CHAR, y, len(places))
            elif word := "".join(chars).strip(" "):
                texts += _word(name, word, at + (places[0] + "".join(chars).index(word)) * CHAR, y)
        texts += f'<path class="{name}" d="{bars}"/>' if bars else ""
    return backs + texts


def _bar(char: str, at: float, y: int, cells: int) -> str:
    """Equal bars side by side, as a part of a path."""
    bottom, width = (y + 1) * LINE, cells * CHAR
    return f"M{at:g} {bottom - LINE * _BARS[char]:g}h{width:g}V{bottom}h-{width:g}z"


def _word(name: str, word: str, at: float, y: int) -> str:
    """Text, as wide as its cells whatever the font is."""
    shown = escape(word).replace(" ", "\u00a0")
    return f'<text class="{name}" x="{at:g}" y="{y * LINE + _BASE:g}" textLength="{len(word) * CHAR:g}">{shown}</text>'


def _colours(style: Style) -> tuple[str, str]:
    """(foreground, background) as ``#rrggbb``, with reverse and dim worked in."""
    fore = style.color.get_truecolor(THEME).hex if style.color and not style.color.is_default else THEME.foreground_color.hex
    back = style.bgcolor.get_truecolor(THEME).hex if style.bgcolor and not style.bgcolor.is_default else THEME.background_color.hex
    if style.reverse:
        fore, back = back, fore
    if style.dim:
        fore = "#" + "".join(f"{(int(fore[i : i + 2], 16) + int(back[i : i + 2], 16)) // 2:02x}" for i in (1, 3, 5))
    return fore, back
