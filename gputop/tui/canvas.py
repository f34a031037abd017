"""Parts that every screen of drawn lines has: colours of its widgets, painting past Textual, notes, the filter's line, its cost."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Generic, TypeVar

from rich.console import COLOR_SYSTEMS
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widgets import Input

from gputop.tui import terminal
from gputop.tui.colours import colours_of, palette
from gputop.tui.widgets import Drawn, Painter, Row

NOTE_S = 4.0  # s that a note stays
READ_S = 1.0  # s that a text must have stood for a key to mean it: who reaches for the key has read the one before (a choice)
Shown = TypeVar("Shown")


class Note:
    """A line that is shown for `NOTE_S`: what was done, or what went wrong."""

    def __init__(self) -> None:
        self._text, self._until_s = "", 0.0  # by time.monotonic

    def show(self, text: str) -> None:
        """Replace the note before."""
        self._text, self._until_s = text, time.monotonic() + NOTE_S

    def end(self) -> None:
        """Show no note any more."""
        self._text = ""

    @property
    def text(self) -> str:
        """The note, empty once its time is over."""
        return self._text if time.monotonic() < self._until_s else ""


class Steady(Generic[Shown]):
    """What a key takes of a line that changes by itself: what stood there `READ_S` ago, which is what was read."""

    def __init__(self, nothing: Shown) -> None:
        self._nothing = nothing
        self._shown: list[tuple[float, Shown]] = []  # (since when by time.monotonic, what stood there), the newest last

    def show(self, what: Shown) -> None:
        """Note what stands there from now on."""
        now_s = time.monotonic()
        if not self._shown or self._shown[-1][1] != what:
            self._shown.append((now_s, what))
        while len(self._shown) > 1 and self._shown[1][0] <= now_s - READ_S:
            del self._shown[0]

    @property
    def taken(self) -> Shown:
        """What a key means now."""
        read_s = time.monotonic() - READ_S
        stood = next((what for since_s, what in reversed(self._shown) if since_s <= read_s), self._nothing)
        return stood if stood != self._nothing else next((what for _, what in self._shown if what != self._nothing), self._nothing)


class FilterLine(Input):
    """The line in which a filter is typed, with a label and how many rows it finds; it lies over the last line of its screen while it is
    open."""

    LABEL = " filter: "

    def __init__(self) -> None:
        self._found = ""
        super().__init__(placeholder="words, or !regex; Enter keeps it, Esc clears it", id="filter", compact=True, disabled=True)

    @property
    def is_open(self) -> bool:
        return not self.disabled

    def open(self, pattern: str) -> None:
        """Take keys, beginning with the filter as it is."""
        self.disabled = False
        self.add_class("-open")
        self.value = pattern
        self.focus()
        self.post_message(Input.Changed(self, pattern))  # also of an empty one: what it finds is counted

    def show_found(self, text: str) -> None:
        """Show at the right how many rows the filter finds."""
        self._found = f" {text} " if text else ""
        self.styles.padding = (0, len(self._found), 0, len(self.LABEL))
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The line, with the label and the number in the room that is left beside what is typed."""
        (strip, *rest), width = super().render_lines(crop), self.outer_size.width
        if crop.x or crop.y or crop.width < width or width <= len(self.LABEL) + len(self._found):
            return [strip, *rest]
        style = self.rich_style
        label, found = (Strip([Segment(text, style)]) for text in (self.LABEL, self._found))
        return [Strip.join([label, strip.crop(len(self.LABEL), width - len(self._found)), found]), *rest]

    def close(self) -> None:
        """Hide the line: keys are the screen's again."""
        self.remove_class("-open")
        self.disabled = True
        self.screen.set_focus(None)


class Canvas:
    """The widgets of a screen that are drawn line by line, in the colours of the theme."""

    def __init__(self, screen: terminal.RowScreen, widgets: Sequence[Drawn], filter_line: FilterLine) -> None:
        self._screen, self._widgets, self._filter_line = screen, widgets, filter_line
        self._painter = Painter(palette(""), None)

    def begin(self) -> None:
        """Take the theme, now and whenever it changes."""
        self._take_theme()
        self._screen.app.theme_changed_signal.subscribe(self._screen, lambda _: self._take_theme())

    def _take_theme(self) -> None:
        for widget in self._widgets:
            widget.set_colours(colours_of(self._screen.app))
        self._make_painter(None)

    def _make_painter(self, base: Style | None) -> None:
        app = self._screen.app
        self._painter = Painter(colours_of(app), COLOR_SYSTEMS.get(app.console.color_system or ""), base)

    @property
    def is_seen(self) -> bool:
        """True if a drawing would be seen soon: nothing covers the screen, and the terminal has taken what was sent."""
        return self._screen.is_current and not terminal.is_behind(self._screen.app)

    @property
    def painter(self) -> Painter | None:
        """Painter of changes, while the terminal shows exactly what was last drawn; otherwise None, and Textual draws."""
        if self._filter_line.is_open or not terminal.can_paint(self._screen) or self._screen.paint_layout is not None:
            return None
        if not self._screen.app.native_ansi_color:
            painted = self._widgets[0].rich_style  # another one once the style sheet has taken a new theme
            if self._painter.base != (base := Style(color=painted.color, bgcolor=painted.bgcolor)):
                self._make_painter(base)
        self._painter.begin()
        return self._painter

    def rows(self) -> list[Row]:
        """What the widgets show, by row of the screen."""
        return [row for widget in self._widgets if widget.display for row in widget.rows()]

    def rearrange(self, stood: Sequence[Row], moved: int) -> bool:
        """Turn what stood on the terminal into what the widgets show now, in their new places, where lanes have moved left by ``moved``;
        False if that is no picture of the same size."""
        rows = self.rows()
        if [len(row.cells.text) for row in rows] != [len(row.cells.text) for row in stood]:
            return False
        self._painter.begin()
        self.send(self._painter.rearrange(stood, rows, moved))
        return True

    @property
    def is_whole(self) -> bool:
        """True if the terminal shows all that was drawn, so that a box may open without repainting what is around it."""
        return self.painter is not None and not terminal.await_repaint(self._widgets)

    def send(self, text: str) -> None:
        """Write what a painter made to the terminal."""
        if text:
            terminal.send(self._screen.app, text + self._painter.end())


class OwnCost:
    """CPU time and memory of this process since the screen was made."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._began[0]

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._began[1]

    @property
    def rss_mb(self) -> int:
        """Resident memory in MiB (/proc/self/statm)."""
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
