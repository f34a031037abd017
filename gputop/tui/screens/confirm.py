"""A question before something is done to somebody's process."""

from __future__ import annotations

import math
import os
import signal
import time

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from gputop.system.text import even
from gputop.tui.layout import is_too_small

SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no; Esc and everything that is not yes is no."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q", "answer(False)", "no")]

    def __init__(self, question: str, names: list[str]) -> None:
        super().__init__()
        self.question = question
        self.names = names
        self.seen_s = math.inf
        """Since when it stands on screen (CLOCK_MONOTONIC)."""

    def compose(self) -> ComposeResult:
        """The question and whom it is about."""
        text = Text(f"{self.question}\n", style="bold")
        for name in self.names[:12]:
            text.append(f"\n  {even(name)}", style="not bold")
        if len(self.names) > 12:
            text.append(f"\n  and {len(self.names) - 12} more", style="not bold")
        text.append("\n\n[y] yes   [n] no", style="not bold")
        with Vertical(classes="box"):
            yield Static(text)

    def on_mount(self) -> None:
        """It can be answered from when it is drawn."""
        self.call_after_refresh(self._drawn)

    def _drawn(self) -> None:
        self.seen_s = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        """What was typed before it was seen is no answer to it."""
        if event.time < self.seen_s:
            event.stop()

    def action_answer(self, answer: bool) -> None:
        """Give the answer."""
        self.dismiss(answer and not is_too_small(*self.app.size))  # nobody says yes to what cannot be read


def send_signal(name: str, targets: dict[int, int]) -> str:
    """Signal processes (pid -> start_ticks); what came of it, in a line.

    A process whose start time differs from the one that was shown is another one by now and is left alone.
    """
    failed = [why for pid, start_ticks in targets.items() if (why := _failure(pid, start_ticks, SIGNALS[name]))]
    done = len(targets) - len(failed)
    return f"SIG{name} sent to {done} of {len(targets)}" + (f"; {'; '.join(failed)}" if failed else "")


def _failure(pid: int, start_ticks: int, number: signal.Signals) -> str:
    """Why the process was not signalled, empty where it was."""
    try:
        _signal(pid, start_ticks, number)
    except PermissionError:
        return f"{pid}: not permitted"
    except (ProcessLookupError, FileNotFoundError):
        return f"{pid} has ended"
    return ""


def _signal(pid: int, start_ticks: int, number: signal.Signals) -> None:
    handle = _handle(pid)
    try:
        if start_ticks_of(pid) != start_ticks:
            raise ProcessLookupError
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


def _handle(pid: int) -> int | None:
    """A descriptor that means this process even when its number is given anew; None where the kernel or a sandbox gives none."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def start_ticks_of(pid: int) -> int:
    """/proc/PID/stat field 22. Raises FileNotFoundError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
