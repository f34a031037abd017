"""The application over hand-made frames: no clock, no collector, no cost of its own, so that each run shows the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from gputop.model.frame import Frame, Header
from gputop.stream.session import Session
from gputop.tui.app import GputopApp
from gputop.tui.draw.view import View
from gputop.tui.feed import ScreenSettings, live_context
from gputop.tui.panels import HeaderPanel, Time
from tests.tui import scene

MakeApp = Callable[..., GputopApp]


class Silence:
    """A stream without frames, which ends when it is closed."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> Iterator[Header | Frame]:
        while not self.closed:
            time.sleep(0.01)
        return iter(())

    def ending(self) -> str:
        return "closed"

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setenv("TERM", "xterm-256color")  # pictures must not depend on the terminal in which they are made
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Time, "silent_s", 0)
    monkeypatch.setattr(HeaderPanel, "cost", lambda panel: "" if panel.context.replay else "self 1.9% CPU 20+41 MB")


@pytest.fixture
def make_app() -> MakeApp:
    """``make_app(session=…, theme=…, **view)``."""

    def make(session: Session | None = None, theme: str = "gputop-dark", **view: object) -> GputopApp:
        return GputopApp(live_context(session or scene.session(), View(**view), Silence, Silence(), ScreenSettings(theme)))  # type: ignore[arg-type]

    return make
