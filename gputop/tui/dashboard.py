"""The dashboard: a screen that holds its drawing, its actions and its moves in time, and passes events on to them."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input

from gputop.tui import bindings
from gputop.tui.actions import Actions, BoxActions, KeepActions, SignalActions, TableActions
from gputop.tui.drawing import Drawing
from gputop.tui.feed import Context
from gputop.tui.widgets import Drawn


class Moves(Actions):
    """Keys that move in time; a live screen and a replay differ in them."""

    def keep_up(self) -> None:
        """Called before each drawing: take up what came of earlier keys."""

    def end_waiting(self) -> None:
        """Called for each key: it means something else than to wait for an earlier one."""

    def click(self, event: events.Click) -> None:
        """Called for each click on a panel."""


class LiveMoves(Moves):
    """Pause, scrub, zoom; the stream goes on being read meanwhile."""

    def action_pause(self) -> None:
        """Hold the screen, or follow the stream."""
        with self._session.lock:
            self._view.toggle_pause(self._session)
        self._drawing.redraw()

    def action_follow(self) -> None:
        """Go back to now."""
        self._view.follow()
        self._drawing.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time."""
        with self._session.lock:
            self._view.scrub(self._session, columns)
        self._drawing.redraw()

    def action_zoom(self, steps: int) -> None:
        """Change the time base."""
        self._view.zoom(steps)
        self._drawing.redraw()

    def action_incident(self, direction: int) -> None:
        """Jump to the next (1) or previous (-1) incident."""
        with self._session.lock:
            found = self._view.next_incident(self._session, direction)
        self._drawing.note(f"here begins {found.cause}: {found.headline}" if found else "no incident in that direction")
        self._drawing.redraw()


class DashboardScreen(Screen[None]):
    """What the GPUs and the host do, on one time axis. What moves in time, and by which keys, is up to its two kinds."""

    AUTO_FOCUS = ""

    def __init__(self, context: Context, moves: type[Moves]) -> None:
        super().__init__()
        self.filter_line = Input(
            placeholder="words, or !regex; Enter keeps it, Esc clears it", id="filter", compact=True, disabled=True
        )  # fmt: skip
        self.drawing = Drawing(self, context, self.filter_line, self.draw_news)
        self.table = TableActions(context, self.drawing, self, self.filter_line)
        self.keep = KeepActions(context, self.drawing, self)
        self.boxes = BoxActions(context, self.drawing, self)
        self.signals = SignalActions(context, self.drawing, self)
        self.moves = moves(context, self.drawing, self)  # last: a replay has a word of its own for the key that records

    def compose(self) -> ComposeResult:
        """The panels, top to bottom, and the filter's line over the last one."""
        yield from (panel.widget for panel in self.drawing.panels)
        yield self.filter_line

    def on_mount(self) -> None:
        """Begin to draw."""
        self.drawing.begin()

    def on_unmount(self) -> None:
        """Draw no more."""
        self.drawing.end()

    def on_resize(self, event: events.Resize) -> None:
        """Share the new room out."""
        self.drawing.resize(*event.size)

    def draw_news(self) -> None:
        """Called a few times a second: draw what is new, and do what was waited for."""
        self.keep.note_problem()
        self.moves.keep_up()
        self.drawing.draw_news()

    def on_key(self, event: events.Key) -> None:
        """A key ends the note of the one before it, and may be the letter of a sort order."""
        self.drawing.end_note()
        self.moves.end_waiting()
        self.table.take_letter(event)

    @on(Input.Changed, "#filter")
    def filter_while_typing(self, event: Input.Changed) -> None:
        """Filter with every letter."""
        self.table.filter_by(event.value)

    @on(Input.Submitted, "#filter")
    def close_filter(self) -> None:
        """Keep the filter."""
        self.table.close_filter()

    async def on_click(self, event: events.Click) -> None:
        """Do what a click on this part of the screen means."""
        if isinstance(event.widget, Drawn):
            self.moves.click(event)
            await self.table.click(event, event.widget)

    def on_mouse_scroll_down(self) -> None:
        """Go down the table."""
        self.table.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        """Go up the table."""
        self.table.action_move(-1)


class LiveScreen(DashboardScreen):
    """The dashboard over a stream that comes."""

    BINDINGS = [*bindings.LIVE]

    def __init__(self, context: Context) -> None:
        super().__init__(context, LiveMoves)
