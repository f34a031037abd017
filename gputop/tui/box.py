"""A box over the dashboard: a title and text that scrolls; Esc, q or the key that opened it closes it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.geometry import Size
from textual.widget import Widget

from gputop.session.session import Session
from gputop.system.text import cell_width, fit
from gputop.tui.context import Context
from gputop.tui.draw import TOO_SMALL, Line, folded, is_too_small, safe_line
from gputop.tui.draw.view import View
from gputop.tui.palette import palette
from gputop.tui.terminal import LoneScreen
from gputop.tui.widgets import Scrolled


class Box(LoneScreen):
    """A modal screen that shows `lines`, which it asks for again every `REFRESH_S` seconds (0: never)."""

    BINDINGS = [
        Binding("escape,q", "dismiss", "close"),
        Binding("down,j", "scroll(1)", "down", show=False),
        Binding("up,k", "scroll(-1)", "up", show=False),
        Binding("pagedown,space", "scroll(20)", "page down", show=False),
        Binding("pageup", "scroll(-20)", "page up", show=False),
    ]
    TITLE = ""
    REFRESH_S = 1.0

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.page = Scrolled(classes="box")
        self._made_for = Size(0, 0)  # the terminal's size that the text was last made for

    @property
    def session(self) -> Session:
        """What is known of the stream; hold its lock."""
        return self.context.session

    @property
    def view(self) -> View:
        """How the stream is looked at."""
        return self.context.view

    @property
    def lone_widget(self) -> Widget:
        """The box itself."""
        return self.page

    def compose(self) -> ComposeResult:
        """One widget, at once in its final size: each further widget or layout would take milliseconds."""
        self.begin_to_open()
        self.refresh_text()
        yield self.page

    def on_mount(self) -> None:
        """Keep the text fresh."""
        self.call_after_refresh(self.end_opening)
        if self.REFRESH_S:
            self.set_interval(self.REFRESH_S, self.refresh_text)

    def on_resize(self) -> None:
        """Make the text anew where the terminal has another size; Textual calls this when the box opens, too."""
        if self._made_for != self.app.size:
            self.view.width, self.view.height = self.app.size  # the dashboard learns it later
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
        """The first line, or lines, which do not scroll."""
        return self.title or self.TITLE

    def content(self) -> Sequence[Line]:
        """What to show."""
        with self.session.lock:
            return self.lines()

    def lines(self) -> Sequence[Line]:
        """What to show, asked for while the session is locked."""
        raise NotImplementedError

    def fit(self, lines: Sequence[Line], head: int) -> None:
        """Make the box as large as its text needs and the terminal allows; ``head`` of the lines do not scroll."""
        widths = [sum(cell_width(part) for part, _ in line) for line in lines]
        rows = len(widths) - head
        self.page.take_room(min(max(widths), self.text_width), min(rows, self.text_height) + head, rows > self.text_height)

    @property
    def text_width(self) -> int:
        """Columns of a line, without border and scroll bar."""
        return max(1, self.app.size.width * 96 // 100 - 5)

    @property
    def text_height(self) -> int:
        """Rows that are seen without scrolling."""
        return max(1, self.app.size.height * 96 // 100 - 4)

    def action_scroll(self, rows: int) -> None:
        """Move the text."""
        self.page.scroll_relative(y=rows, animate=False)
