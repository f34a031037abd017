"""Widgets that are drawn by lines, and send to the terminal only what changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputop.tui.draw import Line, Span, safe_line
from gputop.tui.painter import Cells, Painter, blank, cells_of
from gputop.tui.palette import Palette, palette


class Drawn(Widget):
    """A widget whose content is `show`n as lines of spans; the palette turns their meanings into styles."""

    can_focus = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[list[Span]] = []
        self._cells: list[Cells] = []
        self._palette: Palette = palette("")

    def paint_with(self, colours: Palette) -> None:
        """Take other colours and draw everything anew."""
        self._palette = colours
        self.refresh()

    def show(self, lines: Sequence[Line], painter: Painter | None = None, lane: int = 0, moved: int = 0) -> str:
        """Bring these lines on screen.

        With a ``painter``, what is on the terminal is known to be what was last shown, and the answer is what to send to it;
        otherwise the widget asks Textual to repaint what changed. See `Painter.change` for ``lane`` and ``moved``.
        """
        region, width = self.region, self.size.width
        old_lines, old_cells = self._lines, self._cells
        self._lines, self._cells = [], []
        sent: list[str] = []
        dirty: list[Region] = []
        empty = blank(width) if painter and old_cells and len(old_cells[0].text) == width else None
        for y, given in enumerate(lines):
            line = list(given)
            old = old_cells[y] if y < len(old_cells) and len(old_cells[y].text) == width else None
            if old is not None and line == old_lines[y]:
                self._lines.append(line)
                self._cells.append(old)
                continue
            line = safe_line(line)
            new = cells_of(line, width)
            self._lines.append(line)
            self._cells.append(new)
            before = empty if y >= len(old_cells) else old
            if before is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, before, new, lane, 0 if before is empty else moved))
        for y in range(len(lines), len(old_lines)):
            if empty is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, old_cells[y], empty, lane, 0))
        if dirty:
            self.refresh(*dirty)
        return "".join(sent)

    def line_text(self, y: int) -> str:
        """A line as plain text."""
        return "".join(text for text, _ in self._lines[y]) if y < len(self._lines) else ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, straight from what was shown."""
        base, width = self.rich_style, self.size.width
        rows = []
        for y in range(crop.y, crop.bottom):
            line = self._lines[y] if y < len(self._lines) else []
            strip = Strip([Segment(text, self._palette.get(meaning)) for text, meaning in line])
            strip = strip.adjust_cell_length(width, base).apply_style(base)
            rows.append(strip if crop.x == 0 and crop.width >= width else strip.crop(crop.x, crop.right))
        return rows
