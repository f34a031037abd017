"""gputop with a part that fails after a few uses: `python -m tests.pty.broken PART ARGUMENTS…`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import gputop.cli
from gputop.sources.procfs.identity import Users
from gputop.stream.child import ChildStream
from gputop.stream.session import Session
from gputop.system import crash
from gputop.tui import terminal
from gputop.tui.app import GputopApp
from gputop.tui.dashboard import Actions, DashboardScreen
from gputop.tui.drawing import Drawing
from gputop.tui.feed import Feed, Recorder
from gputop.tui.terminal import PatientWriter, TerminalDriver, TerminalInput

AFTER = 20
PARTS: dict[str, tuple[type, str, int]] = {
    "feed": (Feed, "_take", AFTER), "session": (Session, "ingest", AFTER), "recorder": (Recorder, "take", AFTER),
    "first frame": (GputopApp, "_on_first_frame", 0), "drawing": (DashboardScreen, "draw_news", 3),
    "writer": (PatientWriter, "_taken_at_once", AFTER), "writer's thread": (PatientWriter, "_try", AFTER),
    "keys": (TerminalInput, "feed", 0), "key ticks": (TerminalInput, "tick", AFTER // 4),
    "key action": (Actions, "action_explain", 0), "last words": (ChildStream, "_listen", 0), "mount": (DashboardScreen, "on_mount", 0),
    "resume": (GputopApp, "on_ready", 0), "user names": (Users, "_resolve", 0), "starting": (GputopApp, "get_default_screen", 0),
    "timer": (Drawing, "_wake_later", -1), "driver's start": (TerminalDriver, "_enable_bracketed_paste", 0),
    "driver's thread": (TerminalDriver, "_request_terminal_sync_mode_support", 0), "driver's end": (TerminalDriver, "_enable_line_wrap", 0),
    "driver's writing": (TerminalDriver, "write", AFTER), "driver's mouse": (TerminalDriver, "_disable_mouse_support", 0),
    "application's end": (GputopApp, "_close_all", 0), "deaf": (Feed, "_take", AFTER),
}  # fmt: skip
"""Name -> (class, method that fails, after how many calls; -1: in a timer that it sets)."""
ERRORS: dict[str, Callable[[], BaseException]] = {
    "bug": lambda: ZeroDivisionError("boom"), "memory": MemoryError, "threads": lambda: RuntimeError("can't start new thread"),
    "exit": lambda: SystemExit(1),
}
error = ERRORS[os.environ.get("BROKEN_BY", "bug")]


def fail(*_: object) -> None:
    """A bug, or what `BROKEN_BY` names."""
    raise error()


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
    part = sys.argv.pop(1)
    owner, name, after = PARTS[part]
    if part == "deaf":  # the main thread cannot be interrupted
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        crash._END_S = 0.5
        GputopApp.on_ready = lambda _: time.sleep(60)
    if part == "writer's thread":  # which writes all that is not taken at once
        terminal._not_waiting = lambda _: -1
    setattr(owner, name, broken(getattr(owner, name), after))
    sys.exit(gputop.cli.main())
