"""A small question: which moment of the recording?"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input
from textual.widgets import Static

from gputop.stream.playback import moment
from gputop.tui.draw import clock


class MomentScreen(ModalScreen[float | None]):
    """Gives the Unix time that was asked for, None where Esc was pressed."""

    BINDINGS = [Binding("escape", "dismiss(None)", "close")]

    def __init__(self, start_unix_s: float, end_unix_s: float, marks: Sequence[tuple[str, float]]) -> None:
        super().__init__()
        self._marks = marks
        """(text, Unix time)"""
        self._bounds = start_unix_s, end_unix_s

    def compose(self) -> ComposeResult:
        """What can be typed, and the line for it."""
        start, end = map(clock.of_day, self._bounds)
        with Vertical(classes="box"):
            yield Static(Text(f"go to   {start} … {end}", style="bold"))
            yield Input(placeholder="14:03:07, +90s, 50% or a marker", id="moment", compact=True)
            yield Static(id="wrong")

    @on(Input.Submitted)
    def answer(self, event: Input.Submitted) -> None:
        """Give the moment, or say why it is none."""
        try:
            self.dismiss(moment(event.value, *self._bounds, self._marks))
        except ValueError as error:
            self.query_one("#wrong", Static).update(Text(str(error), style="bold"))
