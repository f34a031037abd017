"""Where alerts go. A sink is a module with ``make(text)``, and a line in `SINKS`; only the modules of sinks that are used are imported."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Protocol

from gputop.alerts.alert import Alert
from gputop.system.errors import UserError

SINKS = {
    "bell": "bell",
    "desktop": "desktop",
    "https:": "webhook",
    "http:": "webhook",
    "slack:": "webhook",
    "exec:": "command",
}
"""How a sink's text begins, or the whole of it without a colon -> its module."""
NO_SINK = "none"  # in place of a sink: overrides those of config.toml
FORMS = "bell, desktop, https://…, slack:https://… or exec:COMMAND"


class Sink(Protocol):
    """A place for alerts."""

    name: str  # for errors; without what is secret in an address

    def send(self, alert: Alert) -> None:
        """Send, in a thread of its own, within seconds. Raises OSError with the reason where that fails."""


def sink_of(text: str) -> Sink:
    """The sink that a text such as ``exec:logger -t gputop`` names. UserError for another text."""
    word, colon, _ = text.strip().partition(":")
    module = SINKS.get(f"{word.lower()}{colon}")
    if module is None:
        raise UserError(f"--alert {text[:60]!r}: write {FORMS}", code=2)
    sink: Sink = importlib.import_module(f"gputop.alerts.{module}").make(text.strip())
    return sink


def sinks_of(texts: Iterable[str]) -> list[Sink]:
    """The sinks of `texts`, each once."""
    return [sink_of(text) for text in dict.fromkeys(texts) if text != NO_SINK]
