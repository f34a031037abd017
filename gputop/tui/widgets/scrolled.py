"""Lines in a border, that scroll."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gputop.tui.draw import Line
from gputop.tui.palette import Palette, palette


class Scrolled(ScrollView):
    """A widget whose content is `show`n as safe lines of spans; those of its head stay where they are."""

    can_focus = False

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._lines: list[Line] = []
        self._head = 0
        self._palette: Palette = palette("")
        self._base = Style.null()

    def show(self, head: Sequence[Line], lines: Sequence[Line], colours: Palette) -> None:
        """Bring these lines on screen."""
        self._head, self._lines, self._palette = len(head), [*head, *lines], colours
        self.virtual_size = Size(0, len(self._lines))
        self.refresh()

    def take_room(self, width: int, height: int, scrolls: bool) -> None:
        """Have room for so many columns and rows of text, beside border, padding and the place for a bar."""
        self.styles.width, self.styles.height = width + 5, height + 2
        self.styles.overflow_y = "scroll" if scrolls else "hidden"

    @property
    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join("".join(part for part, _ in line) for line in self._lines)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips under ``crop``, on the box's own background."""
        self._base = self.rich_style
        return super().render_lines(crop)

    def render_line(self, y: int) -> Strip:
        """A row of what is in sight."""
        y += 0 if y < self._head else self.scroll_offset.y
        line = self._lines[y] if y < len(self._lines) else []
        strip = Strip([Segment(text, self._palette.get(meaning)) for text, meaning in line])
        return strip.adjust_cell_length(self.size.width).apply_style(self._base)
