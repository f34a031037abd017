"""A terminal session as asciicast v2 (docs.asciinema.org/manual/asciicast/v2), written from screens.

Only the differences to the previous screen are written: equal screens give the same small file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.color import Color, ColorType
from rich.segment import Segment
from rich.style import Style

Cell = tuple[str, Style]
BLANK: Cell = (" ", Style.null())
_TYPING_S = 0.07
_ATTRIBUTES = (("bold", "1", "22"), ("dim", "2", "22"), ("italic", "3", "23"), ("underline", "4", "24"), ("reverse", "7", "27"))


class Cast:
    """One session. Only `wait` advances ``now_s``."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = {"version": 2, "width": width, "height": height, "title": title, "env": {"TERM": "xterm-256color", "SHELL": "/bin/sh"}}
        self._events: list[list[object]] = []
        self._rows: list[list[Cell]] = []
        self.now_s = 0.0
        self.frames: list[tuple[float, list[list[Cell]]]] = []
        """(seconds, screen) of all that was shown."""
        self.chapters: dict[str, float] = {}
        """Label of a chapter -> when it begins, in seconds."""

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self.now_s += seconds

    def marker(self, label: str) -> None:
        """Begin a chapter."""
        self._events.append([round(self.now_s, 3), "m", label])
        self.chapters[label] = self.now_s

    def command(self, text: str) -> None:
        """Show a shell's prompt and type a command at it; the next screen is a new one."""
        self._write("\x1b[0m\x1b[2J\x1b[H\x1b[?25h$ ")
        shown = "$ "
        self.frames.append((self.now_s, [[(one, Style.null()) for one in shown]]))
        self.wait(0.8)
        for char in text:
            self._write(char)
            shown += char
            self.frames.append((self.now_s, [[(one, Style.null()) for one in shown]]))
            self.wait(_TYPING_S)
        self.wait(0.4)
        self._write("\r\n\x1b[?25l")
        self._rows = []

    def show(self, strips: Iterable[Iterable[Segment]]) -> None:
        """Show a screen, given as rows of segments."""
        rows = [_cells(strip) for strip in strips]
        old = self._rows or [[] for _ in rows]
        text = "".join(_difference(y, before, row) for y, (before, row) in enumerate(zip(old, rows, strict=True)))
        self._rows = rows
        self.frames.append((self.now_s, rows))
        if text:
            self._write(text)

    def text(self) -> str:
        """The file's content."""
        lines = [json.dumps(self._head), *(json.dumps(event, ensure_ascii=False) for event in self._events)]
        return "\n".join(lines) + "\n"

    def _write(self, text: str) -> None:
        self._events.append([round(self.now_s, 3), "o", text])


def _cells(strip: Iterable[Segment]) -> list[Cell]:
    return [(char, style or Style.null()) for text, style, control in strip if not control for char in text]


def _difference(y: int, before: list[Cell], row: list[Cell]) -> str:
    """The escape sequence that turns one row into the other, from the first cell that differs to the last."""
    padded = before + [BLANK] * (len(row) - len(before)) if before else [("", Style.null())] * len(row)
    changed = [x for x, (old, new) in enumerate(zip(padded, row, strict=False)) if old != new]
    if not changed:
        return ""
    first, end = changed[0], changed[-1] + 1
    return f"\x1b[{y + 1};{first + 1}H{_coded(row[first:end])}"


def _coded(cells: list[Cell]) -> str:
    """The characters of cells, with escape sequences where the style changes."""
    out, state = ["\x1b[0m"], _codes(Style.null())
    for char, style in cells:
        wanted = _codes(style)
        if wanted != state:
            out.append(f"\x1b[{';'.join(new for new, old in zip(wanted, state, strict=True) if new != old)}m")
            state = wanted
        out.append(char)
    return "".join(out)


def _codes(style: Style) -> tuple[str, ...]:
    """The SGR parameters of a style: foreground, background, attributes."""
    attributes = (on if getattr(style, name) else off for name, on, off in _ATTRIBUTES)
    return (_colour(style.color, 38, "39"), _colour(style.bgcolor, 48, "49"), *attributes)


def _colour(colour: Color | None, code: int, default: str) -> str:
    if colour is None or colour.type is ColorType.DEFAULT:
        return default
    red, green, blue = colour.get_truecolor()
    return f"{code};2;{red};{green};{blue}"
