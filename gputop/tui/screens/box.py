"""A box over the dashboard: a title, text that scrolls, closed by Esc, q or the key that opened it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from gputop.text import cell_width
from gputop.tui.draw import Line
from gputop.tui.draw import safe_line
from gputop.tui.palette import palette

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

    @property
    def gputop(self) -> GputopApp:
        """The application, by its own type."""
        return cast("GputopApp", self.app)

    def compose(self) -> ComposeResult:
        """Title and text, at once in their size: each further layout would paint the whole screen again."""
        text, box, scroll = self.content(), Vertical(classes="box"), VerticalScroll(can_focus=False)
        self.fit(text, box, scroll)
        with box:
            yield Static(Text(self.first_line, style="bold"), id="title")
            with scroll:
                yield Static(text, id="text")

    def on_mount(self) -> None:
        """Keep it fresh."""
        if self.REFRESH_S:
            self.set_interval(self.REFRESH_S, self.refresh_text)

    def refresh_text(self) -> None:
        """Ask for the text again."""
        text = self.content()
        self.query_one("#title", Static).update(Text(self.first_line, style="bold"))
        self.query_one("#text", Static).update(text)
        self.fit(text, self.query_one(".box", Vertical), self.query_one(VerticalScroll))

    @property
    def first_line(self) -> str:
        """The box's first line."""
        return self.title or self.TITLE

    def content(self) -> Text:
        """What to show: the lines, in the theme's colours."""
        with self.gputop.session.lock:
            lines = self.lines()
        return as_text(lines, self.app.theme)

    def fit(self, text: Text, box: Vertical, scroll: VerticalScroll) -> None:
        """Make the box as large as the text needs and the terminal allows."""
        rows = text.plain.split("\n")
        scroll.styles.height = min(len(rows), self.text_height)
        scroll.styles.overflow_y = "scroll" if len(rows) > self.text_height else "hidden"
        box.styles.width = min(max(map(cell_width, [self.first_line, *rows])), self.text_width) + 5

    def lines(self) -> Sequence[Line]:
        """What to show; the session is locked meanwhile."""
        raise NotImplementedError

    @property
    def text_width(self) -> int:
        """Columns that a line may take, beside the border and the bar that shows where one is."""
        return max(20, self.app.size.width * 96 // 100 - 5)

    @property
    def text_height(self) -> int:
        """Rows that can be seen without scrolling."""
        return max(5, self.app.size.height * 96 // 100 - 4)

    def action_scroll(self, rows: int) -> None:
        """Move the text."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)


def as_text(lines: Sequence[Line], theme: str) -> Text:
    """Lines of spans as Rich text, in the colours of a theme."""
    colours = palette(theme)
    text = Text(no_wrap=True)
    for i, line in enumerate(lines):
        if i:
            text.append("\n")
        for part, meaning in safe_line(line):
            text.append(part, colours.get(meaning))
    return text
