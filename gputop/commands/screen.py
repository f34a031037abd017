"""A screen from its flags to its end: it takes over from its user his keys, and the theme that he left."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gputop.system import config
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.pilot import Pilot

    from gputop.tui.app import GputopApp

    Guide = Callable[[Pilot[object]], Coroutine[Any, Any, None]]


def add_looks(parser: argparse.ArgumentParser) -> None:
    """The flags that every screen has."""
    parser.add_argument("--ascii", action="store_const", const=True, help="no character beyond ASCII, as where the locale is no UTF-8")
    parser.add_argument("--no-ascii", dest="ascii", action="store_const", const=False, help="every character, whatever the locale is")
    parser.add_argument("--light", action="store_true", help="colours for a light terminal")


def watch(app: GputopApp, theme: str, guide: Guide | None = None) -> int:
    """Show the screen until it is left, then close its stream; the exit code. ``theme`` is the one of last time, empty for none."""
    try:
        _suit(app, theme)
        app.run(mouse=app.context.look.mouse, auto_pilot=guide)
    finally:
        app.context.feed.close()
    return app.return_code or 0


def _suit(app: GputopApp, theme: str) -> None:
    """UserError where the keys are no keys of actions that there are."""
    if theme in app.available_themes:
        app.theme = theme
    if wrong := app.use_keys(config.key_map()):
        raise UserError(f"{config.config_path()}: [keys] {wrong}", code=2)
