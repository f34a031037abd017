"""Sinks, the places that alerts go to. A sink is a module with ``make(text)``, and a line in `SINKS`; only the modules of sinks in use are
imported."""

from __future__ import annotations

import importlib
from collections import Counter
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
"""Beginning of a sink's text (all of it if it has no colon) -> module of the sink."""
NO_SINK = "none"  # in place of a sink: overrides those of config.toml
FORMS = "bell, desktop, https://…, slack:https://… or exec:COMMAND"


class Sink(Protocol):
    """A place for alerts."""

    name: str  # for errors; without what is secret in an address

    def send(self, alert: Alert) -> None:
        """Send, in the sink's own thread, within seconds. Raises OSError with the reason if that fails: `Refused`, `Busy`, or another if a
        new try may succeed."""


class Refused(OSError):
    """Raised if a new try would fail as well."""


class Busy(OSError):
    """Raised if the other side has named a time for the next try."""

    def __init__(self, reason: str, after_s: float) -> None:
        super().__init__(reason)
        self.after_s = after_s  # s


def sink_of(text: str) -> Sink:
    """The sink that a text such as ``exec:logger -t gputop`` names. UserError for another text."""
    word, colon, _ = text.strip().partition(":")
    module = SINKS.get(f"{word.lower()}{colon}")
    if module is None:
        raise UserError(f"--alert {text[:60]!r}: write {FORMS}", code=2)
    sink: Sink = importlib.import_module(f"gputop.alerts.{module}").make(text.strip())
    return sink


def sinks_of(texts: Iterable[str]) -> list[Sink]:
    """The sinks of `texts`, each once. Equal names are numbered: more of an address would reveal its secret."""
    sinks = [sink_of(text) for text in dict.fromkeys(texts) if text != NO_SINK]
    count, seen = Counter(sink.name for sink in sinks), Counter[str]()
    for sink in sinks:
        name = sink.name
        seen[name] += 1
        if count[name] > 1:
            sink.name = f"{name} #{seen[name]}"
    return sinks
