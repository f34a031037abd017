"""The thin frame around the dashboard where there is room for it: it takes no row, for a panel's first line is its upper edge.

Titles and keys stand in the edges; blanks between them become a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from gputop.system.text import cell_width
from gputop.tui.draw import Line, Span

COLUMNS, ROWS = 100, 30  # least size of a terminal with a frame: in a smaller one each column counts (a choice)
LEFT, RIGHT = 2, 1  # columns of the frame beside a line
FRAME = "frame"  # the meaning of an edge
_TOP, _MIDDLE, _BOTTOM, _SIDES = ("╭", "╮"), ("├", "┤"), ("╰", "╯"), ("│", "│")
_EDGES = {"header": _TOP, "gpus": _MIDDLE, "lanes": _MIDDLE, "procs": _MIDDLE, "why": _MIDDLE, "keys": _BOTTOM}
_BLANKS = re.compile(" {3,}")
_AS = {"head": "title", "dim": FRAME}  # meaning of a title on an edge, and of a line


class Frame(NamedTuple):
    """The edges beside a panel's lines."""

    first: tuple[str, str]
    meaning: str

    def beside(self, y: int, line: Line) -> tuple[str, str]:
        """(left, right) of line ``y``."""
        left, right = self.first if y == 0 else _SIDES
        goes_on = y == 0 and bool(line) and line[0][0].startswith("─")
        return f"{left}{'─' if goes_on else ' '}", right


def is_on(columns: int, rows: int) -> bool:
    """True if a terminal of this size has room for a frame."""
    return columns >= COLUMNS and rows >= ROWS


def frame_of(name: str, meaning: str = FRAME) -> Frame:
    """The frame of a panel by its name."""
    return Frame(_EDGES.get(name, _SIDES), meaning)


def filled(name: str, lines: Sequence[Line], rows: int, width: int) -> list[Line]:
    """The lines of a panel in all its rows, the first one an edge if the panel has one."""
    out = [*lines[:rows], *[[]] * (rows - len(lines))]
    if name in _EDGES and rows:
        out[0] = _ruled(tuple(out[0]), width)
    return out


@lru_cache(maxsize=32)
def _ruled(line: tuple[Span, ...], width: int) -> list[Span]:
    """The line as an edge of ``width`` columns: its wider blanks are a line."""
    text = "".join(part for part, _ in line)
    missing = max(0, width - cell_width(text))
    cells = [(char, meaning) for part, meaning in (*line, (" " * missing, "")) for char in part]
    for blanks in _BLANKS.finditer(text + " " * missing):
        first, last = blanks.start() + (blanks.start() > 0), blanks.end() - (blanks.end() < len(cells))
        cells[blanks.start() : blanks.end()] = [(" ", "")] * (blanks.end() - blanks.start())
        cells[first:last] = [("─", FRAME)] * (last - first)
    shown = [(char, _AS.get(meaning, meaning) if char == "─" or meaning == "head" else meaning) for char, meaning in cells]
    return [("".join(char for char, _ in run), meaning) for meaning, run in groupby(shown, key=itemgetter(1))]
