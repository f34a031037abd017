"""Keys that move in time on a live screen. Those of a replay are in `gputop.tui.replay`."""

from __future__ import annotations

from typing import Protocol

from textual import events
from textual.screen import Screen

from gputop.tui.context import Context
from gputop.tui.drawing import Drawing


class Moves(Protocol):
    """What a dashboard asks of its keys in time, besides their actions."""

    def keep_up(self) -> None:
        """Called before each drawing: take up what came of earlier keys."""

    def end_waiting(self) -> None:
        """Called for each key: it means something else than to wait for an earlier one."""

    def click(self, event: events.Click) -> None:
        """Called for each click on a panel."""


class LiveMoves:
    """Pause, scrub, zoom; the stream goes on being read meanwhile."""

    def __init__(self, context: Context, drawing: Drawing, _screen: Screen[None]) -> None:
        self._context = context
        self._drawing = drawing

    def keep_up(self) -> None:
        """Nothing: each key is done at once."""

    def end_waiting(self) -> None:
        """Nothing: no key waits."""

    def click(self, _event: events.Click) -> None:
        """Nothing: a click on the lanes is the table's business."""

    def action_pause(self) -> None:
        """Hold the screen, or follow the stream."""
        with self._context.session.lock:
            self._context.view.toggle_pause(self._context.session)
        self._drawing.redraw()

    def action_follow(self) -> None:
        """Go back to now."""
        self._context.view.follow()
        self._drawing.redraw()

    def action_scrub(self, columns: int) -> None:
        """Move the cursor in time."""
        with self._context.session.lock:
            self._context.view.scrub(self._context.session, columns)
        self._drawing.redraw()

    def action_zoom(self, steps: int) -> None:
        """Change the time base."""
        self._context.view.zoom(steps)
        self._drawing.redraw()

    def action_incident(self, direction: int) -> None:
        """Jump to the next (1) or previous (-1) incident."""
        with self._context.session.lock:
            found = self._context.view.next_incident(self._context.session, direction)
        self._drawing.note(f"here begins {found.cause}: {found.headline}" if found else "no incident in that direction")
        self._drawing.redraw()
