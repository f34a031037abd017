"""Widgets that are drawn by lines, and send to the terminal only what changed.

A line is a list of spans, ``(text, meaning)``; the palette turns meanings into styles. `Drawn.show` compares the new lines
with those on screen, span by span, and asks for a repaint of the differing stretch of each line only: a screen that changes
little costs little, in CPU as in bytes over SSH.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputop.text import cell_width
from gputop.tui.draw import Line
from gputop.tui.draw import Span
from gputop.tui.palette import Palette
from gputop.tui.palette import palette


class Drawn(Widget):
    """A widget whose content is `show`n as lines."""

    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[list[Span]] = []
        self._strips: list[Strip] = []
        self._palette: Palette = palette("")

    def paint_with(self, colours: Palette) -> None:
        """Take other colours and draw everything anew."""
        self._palette = colours
        self._strips = [self._strip(line) for line in self._lines]
        self.refresh()

    def show(self, lines: Sequence[Line]) -> None:
        """Bring these lines on screen; what did not change is not sent again."""
        width = self.size.width
        kept = min(len(lines), len(self._lines))
        dirty = [region for y in range(kept) if (region := self._change(y, lines[y], width))]
        dirty += [Region(0, y, width, 1) for y in range(kept, max(len(lines), len(self._lines)))]
        for y in range(kept, len(lines)):
            self._lines.append(list(lines[y]))
            self._strips.append(self._strip(lines[y]))
        del self._lines[len(lines) :], self._strips[len(lines) :]
        if dirty:
            self.refresh(*dirty)

    def _change(self, y: int, line: Line, width: int) -> Region | None:
        """Replace a line; the region that differs, None where nothing does."""
        old, new = self._lines[y], list(line)
        if old == new:
            return None
        first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        x = sum(cell_width(text) for text, _ in new[:first])
        end = width
        if len(old) == len(new):
            last = next(i for i in range(len(new) - 1, -1, -1) if old[i] != new[i])
            if all(cell_width(old[i][0]) == cell_width(new[i][0]) for i in range(first, last + 1)):
                end = x + sum(cell_width(text) for text, _ in new[first : last + 1])
        self._lines[y] = new
        self._strips[y] = self._strip(new)
        return Region(x, y, max(1, end - x), 1)

    def _strip(self, line: Line) -> Strip:
        colours = self._palette
        return Strip([Segment(text, colours.get(meaning)) for text, meaning in line])

    def line_text(self, y: int) -> str:
        """A line as plain text."""
        return "".join(text for text, _ in self._lines[y]) if y < len(self._lines) else ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, straight from what was shown: no styles cache is needed for what is cached already."""
        base = self.rich_style
        width = self.size.width
        blank = Strip.blank(width, base)
        rows = []
        for y in range(crop.y, crop.bottom):
            strip = self._strips[y].adjust_cell_length(width, base) if y < len(self._strips) else blank
            strip = strip.apply_style(base) if base else strip
            rows.append(strip if crop.x == 0 and crop.width >= width else strip.crop(crop.x, crop.right))
        return rows
