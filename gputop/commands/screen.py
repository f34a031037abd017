"""Parts that all commands with a screen share: flags, the terminal, and running the app."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from gputop.system import config, tty
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.pilot import Pilot

    from gputop.tui.app import GputopApp

    Guide = Callable[[Pilot[object]], Coroutine[Any, Any, None]]


def add_looks(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every screen has."""
    parser.add_argument("--ascii", action="store_const", const=True, help="no character beyond ASCII (as in a C locale)")
    parser.add_argument("--no-ascii", dest="ascii", action="store_const", const=False, help="every character, whatever the locale is")
    parser.add_argument("--light", action="store_true", help="colours for a light terminal")


def use_terminal(instead: str) -> None:
    """Raise UserError if no screen can be shown; ``instead`` names what to use then.

    COLUMNS and LINES are dropped where the terminal reports its size: they were set once (``docker exec -e COLUMNS=…``) and would
    override later changes of the size.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError(f"this is no terminal: use {instead}")
    if (kind := os.environ.get("TERM", "")) in ("", "dumb"):
        told = f"TERM={kind}" if kind else "a terminal whose TERM is not set"
        raise UserError(f"{told} cannot show a screen: use {instead}, or set TERM (xterm-256color, say)")
    if all(os.get_terminal_size(sys.stdout.fileno())):
        os.environ.pop("COLUMNS", None)
        os.environ.pop("LINES", None)


def watch(app: GputopApp, theme: str, guide: Guide | None = None) -> int:
    """Run the app until the user leaves, give the terminal back whatever ended the app, and close its stream.

    Returns the exit code. ``theme`` is the saved one, empty for none.
    """
    try:
        _apply_config(app, theme)
        app.run(mouse=app.context.look.mouse, auto_pilot=guide)
    finally:
        tty.give_back()
        app.context.feed.close()
    return app.return_code or 0


def _apply_config(app: GputopApp, theme: str) -> None:
    """Set the saved theme and the user's key map. UserError for wrong keys."""
    if theme in app.available_themes:
        app.theme = theme
    if wrong := app.use_keys(config.key_map()):
        raise UserError(f"{config.paths()[-1]}: [keys] {wrong}", code=2)
