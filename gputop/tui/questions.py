"""Two small questions: whether to signal processes, and which moment of a recording to go to."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputop.session.moment import Timed, moment_within
from gputop.system.errors import UserError
from gputop.system.text import even
from gputop.tui.draw import is_too_small, time_of_day

MOST_NAMES = 12  # processes that a question names; it counts the others


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no; every other key is no answer, Esc is no."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q", "answer(False)", "no")]

    def __init__(self, question: str, names: Sequence[str]) -> None:
        super().__init__()
        self.question = question
        self.names = names
        self.seen_s = math.inf  # since when it is on screen (time.monotonic)

    def compose(self) -> ComposeResult:
        """The question, and the processes it is about."""
        text = Text(f"{self.question}\n", style="bold")
        for name in self.names[:MOST_NAMES]:
            text.append(f"\n  {even(name)}", style="not bold")
        if len(self.names) > MOST_NAMES:
            text.append(f"\n  and {len(self.names) - MOST_NAMES} more", style="not bold")
        text.append("\n\n[y] yes   [n] no", style="not bold")
        with Vertical(classes="box"):
            yield Static(text)

    def on_mount(self) -> None:
        """Take answers from when it is drawn."""
        self.call_after_refresh(self._mark_seen)

    def _mark_seen(self) -> None:
        self.seen_s = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        """Drop what was typed before the question was on screen: it is no answer to it."""
        if event.time < self.seen_s:
            event.stop()

    def action_answer(self, answer: bool) -> None:
        """Give the answer; a question that is too small to read is never answered with yes."""
        self.dismiss(answer and not is_too_small(*self.app.size))


class MomentScreen(ModalScreen[int | None]):
    """Gives the moment that was asked for (CLOCK_MONOTONIC ns), None for Esc."""

    BINDINGS = [Binding("escape", "dismiss(None)", "close")]

    def __init__(self, recording: Timed) -> None:
        super().__init__()
        self._recording = recording

    def compose(self) -> ComposeResult:
        """The times there are, and the line to type in."""
        known = self._recording
        start, end = (time_of_day(known.header.unix_ns_of(t_ns) / 1e9) for t_ns in (known.start_ns, known.end_ns))
        with Vertical(classes="box"):
            yield Static(Text(f"go to   {start} … {end}", style="bold"))
            yield Input(placeholder="14:03:07, 90s, 50% or a marker", id="moment", compact=True)
            yield Static(id="wrong")

    @on(Input.Submitted)
    def answer(self, event: Input.Submitted) -> None:
        """Give the moment, or say why the text is none."""
        try:
            self.dismiss(moment_within(event.value, self._recording))
        except UserError as error:
            self.query_one("#wrong", Static).update(Text(str(error), style="bold"))
