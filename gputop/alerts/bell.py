"""``bell``: rings the terminal's bell (BEL). tmux and screen handle it by their option bell-action."""

from __future__ import annotations

from gputop.alerts.alert import BEGIN, Alert
from gputop.alerts.terminal import write_terminal


class Bell:
    """Rings when an incident begins."""

    name = "bell"

    def send(self, alert: Alert) -> None:
        if alert.event == BEGIN:
            write_terminal("\a")


def make(_text: str) -> Bell:
    """The sink."""
    return Bell()
