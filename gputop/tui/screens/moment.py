"""A small question: which moment of the recording?"""

from __future__ import annotations

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputop.session.moment import Timed, moment_within
from gputop.system.errors import UserError
from gputop.tui.draw import clock


class MomentScreen(ModalScreen[int | None]):
    """Gives the moment that was asked for (CLOCK_MONOTONIC ns), None where Esc was pressed."""

    BINDINGS = [Binding("escape", "dismiss(None)", "close")]

    def __init__(self, recording: Timed) -> None:
        super().__init__()
        self._recording = recording

    def compose(self) -> ComposeResult:
        """What can be typed, and the line for it."""
        known = self._recording
        start, end = (clock.of_day(known.header.unix_ns_of(t_ns) / 1e9) for t_ns in (known.start_ns, known.end_ns))
        with Vertical(classes="box"):
            yield Static(Text(f"go to   {start} … {end}", style="bold"))
            yield Input(placeholder="14:03:07, 90s, 50% or a marker", id="moment", compact=True)
            yield Static(id="wrong")

    @on(Input.Submitted)
    def answer(self, event: Input.Submitted) -> None:
        """Give the moment, or say why it is none."""
        try:
            self.dismiss(moment_within(event.value, self._recording))
        except UserError as error:
            self.query_one("#wrong", Static).update(Text(str(error), style="bold"))
