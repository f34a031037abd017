"""gputop with a part that fails after a few uses: `python -m tests.pty.broken PART ARGUMENTS…`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import gputop.cli
from gputop.session.child import ChildStream
from gputop.session.session import Session
from gputop.sources.procfs.identity import Users
from gputop.tui.app import GputopApp
from gputop.tui.dashboard import Actions, DashboardScreen
from gputop.tui.drawing import Drawing
from gputop.tui.feed import Feed, Recorder
from gputop.tui.terminal import PatientWriter, TerminalInput

AFTER = 20
PARTS: dict[str, tuple[type, str, int]] = {
    "feed": (Feed, "_take", AFTER), "session": (Session, "ingest", AFTER), "recorder": (Recorder, "take", AFTER),
    "first frame": (GputopApp, "_on_first_frame", 0), "drawing": (DashboardScreen, "draw_news", 3),
    "writer": (PatientWriter, "_try", AFTER), "keys": (TerminalInput, "feed", 0), "key ticks": (TerminalInput, "tick", AFTER // 4),
    "key action": (Actions, "action_explain", 0), "last words": (ChildStream, "_listen", 0), "mount": (DashboardScreen, "on_mount", 0),
    "resume": (GputopApp, "on_ready", 0), "user names": (Users, "_resolve", 0), "starting": (GputopApp, "get_default_screen", 0),
    "timer": (Drawing, "_wake_later", -1),
}  # fmt: skip
"""Name -> (class, method that fails, after how many calls; -1: in a timer that it sets)."""


def fail(*_: object) -> None:
    """A bug."""
    raise ZeroDivisionError("boom")


def broken(whole: Callable[..., Any], after: int) -> Callable[..., Any]:
    """The method, which fails after ``after`` calls."""
    calls = 0

    @wraps(whole)
    def one(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if after < 0:
            asyncio.get_running_loop().call_later(0.2, fail)
        elif calls > after:
            fail()
        return whole(*arguments, **more)

    return one


if __name__ == "__main__":
    owner, name, after = PARTS[sys.argv.pop(1)]
    setattr(owner, name, broken(getattr(owner, name), after))
    sys.exit(gputop.cli.main())
