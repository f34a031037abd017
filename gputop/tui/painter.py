"""A short cut from changed lines to the terminal, past Textual's compositor.

Five times a second some forty lines change in a few cells each, and lanes move left by a column. The compositor renders and
sends such lines whole (67 KB/s); here only the cells that differ are sent, and a line that moved is moved by the terminal
itself (DCH, which every terminal since the VT102 has), since our lanes end at its right edge (4.4 KB/s). Whenever anything
else is on the screen, Textual draws.

A line is kept as two strings of one character per cell: the text, and a code for its look. Comparing and moving lines are
then string operations.
"""

from __future__ import annotations

from rich.color import ColorSystem

from gputop.system.text import cell_width, is_narrow
from gputop.tui.draw import Line
from gputop.tui.palette import Palette

_FILLER = "\x00"  # the second cell of a wide character
_GAP = 6  # cells between differing runs that are written as one: moving the cursor costs as much
_BLOCK = 16  # cells compared at once, as slices of strings, before any single one is


class Cells:
    """A line in cells."""

    __slots__ = ("looks", "text")

    def __init__(self, text: str, looks: str) -> None:
        self.text = text
        self.looks = looks


class _Codes(dict[str, str]):
    """Meaning -> one character, so that the looks of a line are a string."""

    def __init__(self) -> None:
        self.meanings: dict[str, str] = {}  # code -> meaning

    def __missing__(self, meaning: str) -> str:
        self[meaning] = code = chr(0x100 + len(self))
        self.meanings[code] = meaning
        return code


_codes = _Codes()


def cells_of(line: Line, width: int) -> Cells:
    """The line in exactly ``width`` cells."""
    text = "".join([part for part, _ in line])
    if not is_narrow(text):  # asked once per line: mostly it is narrow, and asking takes longer than joining
        line = [(_spread(part), meaning) for part, meaning in line]
        text = "".join([part for part, _ in line])
    looks = "".join([_codes[meaning] * len(part) for part, meaning in line])
    if text[width : width + 1] == _FILLER:  # the right half of a wide character is cut off: so is the left one
        text = text[: width - 1] + " "
    missing = width - len(text)
    if missing > 0:
        return Cells(text + " " * missing, looks + _codes[""] * missing)
    return Cells(text[:width], looks[:width])


def blank(width: int) -> Cells:
    """An empty line."""
    return Cells(" " * width, _codes[""] * width)


def _spread(text: str) -> str:
    """One character per cell: a filler behind each wide character; combining marks, which take no cell, are left out."""
    return "".join(char + _FILLER if cell_width(char) == 2 else char for char in text if cell_width(char))


class Painter:
    """Turns differences between lines into what to send to the terminal."""

    def __init__(self, colours: Palette, system: ColorSystem | None) -> None:
        self._colours = colours
        self._system = system
        self._rendered: dict[str, tuple[str, str]] = {}

    def change(self, x: int, y: int, old: Cells, new: Cells, lane_at: int, moved: int) -> str:
        """What brings ``old`` to ``new`` on screen row ``y`` from column ``x``, both 0-based.

        From the cell ``lane_at`` on the line has moved left by ``moved`` cells.
        """
        if moved and old.text[lane_at:] + old.looks[lane_at:] != new.text[lane_at:] + new.looks[lane_at:]:
            after = _shifted(old, lane_at, moved)
            return f"\x1b[{y + 1};{x + lane_at + 1}H\x1b[{moved}P" + self._runs(x, y, after, new)
        return self._runs(x, y, old, new)

    def _runs(self, x: int, y: int, old: Cells, new: Cells) -> str:
        return "".join(self._write(x + first, y, new, first, last) for first, last in _differences(old, new))

    def _write(self, x: int, y: int, cells: Cells, first: int, last: int) -> str:
        out = [f"\x1b[{y + 1};{x + 1}H"]
        looks, text = cells.looks, cells.text
        while first < last:
            code = looks[first]
            end = first + 1
            while end < last and looks[end] == code:
                end += 1
            before, after = self._style(code)
            out.append(before + text[first:end].replace(_FILLER, "") + after)
            first = end
        return "".join(out)

    def _style(self, code: str) -> tuple[str, str]:
        """What to send before and after text of this look."""
        if code not in self._rendered:
            style = self._colours.get(_codes.meanings[code])
            before, _, after = style.render("\x00", color_system=self._system).partition("\x00") if style else ("", "", "")
            self._rendered[code] = before, after
        return self._rendered[code]


def _shifted(old: Cells, lane_at: int, by: int) -> Cells:
    """The line after the terminal has deleted ``by`` cells at ``lane_at``."""
    text = old.text[:lane_at] + old.text[lane_at + by :] + " " * by
    return Cells(text, old.looks[:lane_at] + old.looks[lane_at + by :] + _codes[""] * by)


def _differences(old: Cells, new: Cells) -> list[tuple[int, int]]:
    """Runs of differing cells as (first, behind last)."""
    old_text, text, old_looks, looks = old.text, new.text, old.looks, new.looks
    if old_text == text and old_looks == looks:
        return []
    runs: list[tuple[int, int]] = []
    for block in range(0, len(text), _BLOCK):
        end = block + _BLOCK
        if old_text[block:end] == text[block:end] and old_looks[block:end] == looks[block:end]:
            continue
        for i in range(block, min(end, len(text))):
            if old_text[i] == text[i] and old_looks[i] == looks[i]:
                continue
            if runs and i - runs[-1][1] < _GAP:
                runs[-1] = runs[-1][0], i + 1
            else:
                runs.append((i, i + 1))
    return [(first - (text[first] == _FILLER), last + text.startswith(_FILLER, last)) for first, last in runs]
