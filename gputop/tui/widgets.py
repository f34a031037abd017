"""The two widgets that gputop draws by lines: parts of the dashboard, which send only what changed, and text that scrolls in a box."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
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
        self._shown: list[list[Span]] = []
        self._cells: list[Cells] = []
        self._palette: Palette = palette("")

    def set_colours(self, colours: Palette) -> None:
        """Draw everything anew in other colours."""
        self._palette = colours
        self.refresh()

    def show(self, lines: Sequence[Line], painter: Painter | None = None, lane_at: int = 0, moved: int = 0) -> str:
        """Show these lines.

        With a ``painter``, the terminal is known to show what was last shown here, and the answer is what to send to it;
        otherwise Textual is asked to repaint what changed. ``lane_at`` and ``moved``: see `Painter.change`.
        """
        region, width = self.region, self.size.width
        old_lines, old_cells = self._shown, self._cells
        self._shown, self._cells = [], []
        sent: list[str] = []
        dirty: list[Region] = []
        empty = blank(width) if painter and old_cells and len(old_cells[0].text) == width else None
        for y, given in enumerate(lines):
            line = list(given)
            old = old_cells[y] if y < len(old_cells) and len(old_cells[y].text) == width else None
            if old is not None and line == old_lines[y]:
                self._shown.append(line)
                self._cells.append(old)
                continue
            line = safe_line(line)
            new = cells_of(line, width)
            self._shown.append(line)
            self._cells.append(new)
            before = empty if y >= len(old_cells) else old
            if before is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, before, new, lane_at, 0 if before is empty else moved))
        for y in range(len(lines), len(old_lines)):
            if empty is None or painter is None:
                dirty.append(Region(0, y, width, 1))
            elif y < region.height:
                sent.append(painter.change(region.x, region.y + y, old_cells[y], empty, lane_at, 0))
        if dirty:
            self.refresh(*dirty)
        return "".join(sent)

    def line_text(self, y: int) -> str:
        """A line as plain text."""
        return "".join(text for text, _ in self._shown[y]) if y < len(self._shown) else ""

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, straight from what was shown."""
        base, width = self.rich_style, self.size.width
        rows = []
        for y in range(crop.y, crop.bottom):
            line = self._shown[y] if y < len(self._shown) else []
            strip = _strip(line, self._palette).adjust_cell_length(width, base).apply_style(base)
            rows.append(strip if crop.x == 0 and crop.width >= width else strip.crop(crop.x, crop.right))
        return rows


class Scrolled(ScrollView):
    """A widget whose content is `show`n as safe lines of spans; the lines of its head do not scroll."""

    can_focus = False

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._shown: list[Line] = []
        self._head = 0
        self._palette: Palette = palette("")
        self._base = Style.null()

    def show(self, head: Sequence[Line], lines: Sequence[Line], colours: Palette) -> None:
        """Show these lines."""
        self._head, self._shown, self._palette = len(head), [*head, *lines], colours
        self.virtual_size = Size(0, len(self._shown))
        self.refresh()

    def take_room(self, width: int, height: int, scrolls: bool) -> None:
        """Have room for so many columns and rows of text, besides border, padding and scroll bar."""
        self.styles.width, self.styles.height = width + 5, height + 2
        self.styles.overflow_y = "scroll" if scrolls else "hidden"

    @property
    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join("".join(part for part, _ in line) for line in self._shown)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, on the box's own background."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """A row of the visible part."""
        y += 0 if y < self._head else self.scroll_offset.y
        line = self._shown[y] if y < len(self._shown) else []
        return _strip(line, self._palette).adjust_cell_length(self.size.width).apply_style(self._base)


def _strip(line: Line, colours: Palette) -> Strip:
    return Strip([Segment(text, colours.get(meaning)) for text, meaning in line])
