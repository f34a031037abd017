"""A box over the dashboard: a title, text that scrolls, closed by Esc, q or the key that opened it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.strip import Strip

from gputop.system.text import cell_width, fit
from gputop.tui.draw import Line, folded, safe_line
from gputop.tui.layout import TOO_SMALL, is_too_small
from gputop.tui.palette import palette
from gputop.tui.widgets.scrolled import Scrolled

if TYPE_CHECKING:
    from gputop.tui.app import GputopApp


class Box(ModalScreen[None]):
    """A modal screen that shows lines; `lines` is asked anew every `REFRESH_S` seconds."""

    BINDINGS = [
        Binding("escape,q", "dismiss", "close"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown,space", "scroll(20)", "page down", show=False),
        Binding("pageup", "scroll(-20)", "page up", show=False),
    ]
    TITLE = ""
    REFRESH_S = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.page = Scrolled(classes="box")
        self.opens_alone = False
        """Whether the terminal shows around the box what it should, so that opening it need not paint that."""
        self._opens_in: Size | None = None
        """The terminal's size while the box opens alone."""
        self._is_alone = False
        """Whether nothing but the box is being painted."""
        self._made_for = Size(0, 0)
        """The terminal's size that the text was last made for."""

    @property
    def gputop(self) -> GputopApp:
        """The application, by its own type."""
        return cast("GputopApp", self.app)

    def compose(self) -> ComposeResult:
        """All in one widget, at once in its size: each further one, and each further layout, would take milliseconds."""
        self._opens_in = self.app.size if self.opens_alone else None
        self.refresh_text()
        yield self.page

    def on_mount(self) -> None:
        """Keep it fresh."""
        self.call_after_refresh(self._opened)
        if self.REFRESH_S:
            self.set_interval(self.REFRESH_S, self.refresh_text)

    def on_resize(self) -> None:
        """Make the text anew for another terminal's size; opening comes here too, with the one it has."""
        if self._made_for != self.app.size:
            self.gputop.view.width, self.gputop.view.height = self.app.size  # the dashboard hears of it later
            self.refresh_text()

    def refresh_text(self) -> None:
        """Ask for the text again."""
        self._made_for, width = self.app.size, self.text_width
        lines = [row for line in self.content() for row in folded(safe_line(line), width)]
        head = [row for line in self.first_line.split("\n") for row in folded(safe_line([(line, "title")]), width)]
        if is_too_small(*self.app.size):
            head, lines = [[(fit(TOO_SMALL, self.app.size.width), "warn")]], []
        self.page.set_class(is_too_small(*self.app.size), "-too-small")
        self.fit([*head, *lines], len(head))
        self.page.show(head, lines, palette(self.app.theme))

    @property
    def first_line(self) -> str:
        """The box's first line."""
        return self.title or self.TITLE

    def content(self) -> Sequence[Line]:
        """What to show."""
        with self.gputop.session.lock:
            return self.lines()

    def lines(self) -> Sequence[Line]:
        """What to show, asked for while the session is locked."""
        raise NotImplementedError

    def fit(self, lines: Sequence[Line], head: int) -> None:
        """Make the box as large as the text, ``head`` lines of which do not scroll, needs and the terminal allows."""
        widths = [sum(cell_width(part) for part, _ in line) for line in lines]
        rows = len(widths) - head
        self.page.take_room(min(max(widths), self.text_width), min(rows, self.text_height) + head, rows > self.text_height)

    def _compositor_refresh(self) -> None:
        """While it opens, no more than the box: Textual would paint the whole dashboard around it anew, twice."""
        whole, dirty = self.size.region, self._compositor._dirty_regions
        page = self.page.region.intersection(whole)
        if self._opens_in == self.app.size and page != whole:
            dirty.discard(whole)
        self._is_alone = all(map(page.contains_region, dirty))
        super()._compositor_refresh()
        self._is_alone = False

    def render_lines(self, crop: Region) -> list[Strip]:
        """What stands around the box; none of it is seen where only the box is painted."""
        return [Strip.blank(crop.width)] * crop.height if self._is_alone else super().render_lines(crop)

    def _opened(self) -> None:
        self._opens_in = None

    @property
    def text_width(self) -> int:
        """Columns that a line may take, beside the border and the bar that shows where one is."""
        return max(1, self.app.size.width * 96 // 100 - 5)

    @property
    def text_height(self) -> int:
        """Rows that can be seen without scrolling."""
        return max(1, self.app.size.height * 96 // 100 - 4)

    def action_scroll(self, rows: int) -> None:
        """Move the text."""
        self.page.scroll_relative(y=rows, animate=False)
