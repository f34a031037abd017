"""The dashboard: draws the parts from what is known, a few times a second."""

from __future__ import annotations

import asyncio
import time

from textual import events
from textual.app import ComposeResult
from textual.widgets import Input

from gputop.tui import navigate
from gputop.tui.draw import ascii_line, chosen, gpus, procs
from gputop.tui.draw.axis import Axis
from gputop.tui.draw.lanes import Lane
from gputop.tui.draw.rows import rows
from gputop.tui.layout import Heights, arrange
from gputop.tui.painter import Painter
from gputop.tui.palette import palette
from gputop.tui.screens.box import Box
from gputop.tui.screens.parts import Parts
from gputop.tui.widgets.drawn import Drawn

TABLE_EVERY_S = 0.9
NUMBERS_EVERY_S = 0.7
NOTE_S = 4.0


class Dashboard(Parts):
    """What the GPUs and the host do, on one time axis."""

    AUTO_FOCUS = ""
    LOOK_EVERY_S = 1.0
    """How often it is drawn even if nobody said that there was news: notes end, and so may the stream."""

    def __init__(self) -> None:
        super().__init__()
        self._drawn = {part: Drawn(id=part) for part in self.PARTS}
        self._rows_at = 0.0
        self._numbers_at = 0.0
        self._looking: asyncio.TimerHandle | None = None
        self._found: list[Lane] = []
        self._drawn_state: tuple[object, ...] = ()
        self._axis: Axis | None = None
        self._moved = 0
        self._painter = Painter(palette(""), None)

    def compose(self) -> ComposeResult:
        """The parts, top to bottom, and the filter's line over the last one."""
        yield from self._drawn.values()
        yield Input(placeholder="words, or !regex; Enter keeps it, Esc clears it", id="filter", compact=True, disabled=True)

    def on_mount(self) -> None:
        """Begin to draw."""
        self.repaint(self.app.theme)
        self.app.theme_changed_signal.subscribe(self, lambda theme: self.repaint(theme.name))
        self._look_later()

    def on_unmount(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    def repaint(self, theme: str) -> None:
        """Take the colours of a theme."""
        colours = palette(theme, coloured=not self.app.no_color)
        for part in self._drawn.values():
            part.paint_with(colours)
        self._painter = Painter(colours, self.gputop.console._color_system)

    def on_resize(self, event: events.Resize) -> None:
        """Share the new room out."""
        self.view.width, self.view.height = event.size.width, event.size.height
        self._heights = Heights()
        self.draw_all()

    def _look_later(self) -> None:
        """From the last drawing on: while news come nobody is woken for this."""
        if self._looking is not None:
            self._looking.cancel()
        self._looking = asyncio.get_running_loop().call_later(self.LOOK_EVERY_S, self._look_again)

    def _look_again(self) -> None:
        self._look_later()
        self.draw_live()

    def draw_live(self) -> None:
        """There may be news: nothing to do while nothing moves, or while the terminal is behind."""
        session, view = self.session, self.view
        shown_ns = session.now_ns if view.end_ns is None else 0
        noted = self._note[0] and time.monotonic() < self._note[1]
        state = (shown_ns, self.gputop.feed.trouble, self._silent_s(), noted, *self._more_state())
        if state != self._drawn_state and not self.gputop.is_behind and self.is_current:
            numbers_drawn = self._draw(everything=False)
            # What stands still from now on must be drawn once more when its numbers are due.
            self._drawn_state = state if numbers_drawn else ()

    def _more_state(self) -> tuple[object, ...]:
        """What else is on screen and changes by itself."""
        return ()

    def draw_all(self) -> None:
        """Draw every part from what is known now."""
        self._draw(everything=True)

    def _draw(self, everything: bool) -> bool:
        """Draw the parts that are due: the lanes grow all the time, the table's when a column ends, numbers at a reader's pace.

        Whether numbers were among them.
        """
        if self.view.width < 1 or not self.is_mounted:
            return False
        self._look_later()
        with self.session.lock, self.app.batch_update():
            numbers = self._numbers_due(everything)
            if numbers:
                self._found = chosen.lanes(self.session, self.view)
            if self._arrange(gpus.count(self.session.board), len(self._found)):
                everything, numbers = True, self._numbers_due(everything=True)
            table_due = self._refresh_rows()
            self._follow_axis()
            due = ["lanes"] + ["procs"] * (everything or table_due or self._moved > 0) + numbers
            painter = self._painter if self._can_paint else None
            sent = [self._show(part, self._found, painter) for part in due]
        if any(sent):
            self.gputop.send("".join(sent))
        return bool(numbers)

    def _numbers_due(self, everything: bool) -> list[str]:
        now = time.monotonic()
        if not everything and now - self._numbers_at < NUMBERS_EVERY_S:
            return []
        self._numbers_at, self._numbers_ns = now, self.view.at_ns or self.session.now_ns
        return [part for part in self.PARTS if part not in ("lanes", "procs")]

    def _show(self, part: str, found: list[Lane], painter: Painter | None) -> str:
        lines = self._lines_of(part, found)
        if self.view.ascii_only:
            lines = [ascii_line(line) for line in lines]
        lane = self._lane_of(part)
        return self._drawn[part].show(lines, painter, lane, self._moved if lane else 0)

    @property
    def _can_paint(self) -> bool:
        """Whether the terminal shows exactly what was last drawn: nothing lies over it and nothing waits to be repainted."""
        waiting = bool(self._dirty_widgets) or self._layout_required
        return self.app.screen is self and self.gputop.paints_itself and self._uncovered and not waiting

    @property
    def _uncovered(self) -> bool:
        return bool(self.query_one("#filter", Input).disabled) and not len(self.app._notifications)

    def _lane_of(self, part: str) -> int:
        """The column where a part's lanes begin, 0 where it has none."""
        if part == "lanes":
            return self.view.label_width
        return self.view.width - procs.lane_columns(self.view) if part == "procs" else 0

    def _follow_axis(self) -> None:
        """How many columns the lanes move left with this drawing."""
        now = navigate.axis_of(self.view, self.session)
        same = self._axis is not None and (now.cell_ns, now.columns) == (self._axis.cell_ns, self._axis.columns)
        moved = now.last - self._axis.last if same and self._axis else 0
        self._moved = moved if 0 < moved < now.columns // 2 else 0
        self._axis = now

    def _arrange(self, gpu_count: int, lane_count: int) -> bool:
        heights = arrange(self.view.height, gpu_count, lane_count, "scrub" in self.PARTS)
        if self.is_too_small:
            heights = Heights(header=1)
        if heights == self._heights:
            return False
        self._heights = heights
        for part in self.PARTS:
            rows = getattr(heights, part)
            self._drawn[part].display = rows > 0
            self._drawn[part].styles.height = rows
        return True

    def _refresh_rows(self) -> bool:
        """The table's numbers: once a second while live, at once after a key; whether they are new."""
        now = time.monotonic()
        due = now - self._rows_at >= TABLE_EVERY_S and (self.view.end_ns is None or not self._rows_at)
        if due:
            self._rows, self._rows_at = rows(self.session, self.view), now
        return due

    def open(self, box: Box) -> None:
        """Bring a box over the dashboard."""
        box.opens_alone = self._can_paint and not any(part._repaint_required for part in self._drawn.values())
        self.app.push_screen(box)

    def note(self, text: str) -> None:
        """Say something in the last line for a few seconds."""
        self._note = (text, time.monotonic() + NOTE_S)
        self.draw_all()

    def end_note(self) -> None:
        """The keys are in the last line again, with the next drawing."""
        self._note = ("", 0.0)

    def redraw(self) -> None:
        """After a key: new rows, new picture."""
        self._rows_at = 0.0
        self.draw_all()
