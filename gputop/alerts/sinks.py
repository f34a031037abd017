"""Where alerts go. A sink is a module with ``make(text)``, and a line in `SINKS`; only the modules of sinks that are used are imported."""

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
"""How a sink's text begins, or the whole of it without a colon -> its module."""
NO_SINK = "none"  # in place of a sink: overrides those of config.toml
FORMS = "bell, desktop, https://…, slack:https://… or exec:COMMAND"


class Sink(Protocol):
    """A place for alerts."""

    name: str  # for errors; without what is secret in an address

    def send(self, alert: Alert) -> None:
        """Send, in a thread of its own, within seconds. Raises OSError with the reason where that fails: `Refused`, `Busy`, or another
        for what is worth another try."""


class Refused(OSError):
    """Nothing will be different next time."""


class Busy(OSError):
    """The other side has said when to come again."""

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
    """The sinks of `texts`, each once. Those of one name are numbered: more of an address would be its secret."""
    sinks = [sink_of(text) for text in dict.fromkeys(texts) if text != NO_SINK]
    count, seen = Counter(sink.name for sink in sinks), Counter[str]()
    for sink in sinks:
        name = sink.name
        seen[name] += 1
        if count[name] > 1:
            sink.name = f"{name} #{seen[name]}"
    return sinks
