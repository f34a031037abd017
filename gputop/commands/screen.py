"""Parts that all commands with a screen share: flags, the terminal, and running the app."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from gputop.system import config, tty
from gputop.system.console import draws_ascii
from gputop.system.errors import UserError
from gputop.system.imports import without
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.tui.app import GputopApp
    from gputop.tui.draw.view import View
    from gputop.tui.feed import ScreenSettings

_LIGHT = "gputop-light"  # the theme of --light
COLUMNS = 2  # columns of the lanes that one drawing adds: what a drawing costs is mostly the same whatever it adds
LEAST_S, MOST_S = 0.25, 1.0  # s between two readings of the stream, each with a drawing


def add_looks(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every screen has."""
    parser.add_argument("--ascii", action="store_const", const=True, help="no character beyond ASCII (as in a C locale)")
    parser.add_argument("--no-ascii", dest="ascii", action="store_const", const=False, help="every character, whatever the locale is")
    parser.add_argument("--light", action="store_true", help="colours for a light terminal")
    parser.add_argument("--theme", default="", metavar="NAME", help="colours: gputop-night, nord … (ctrl+p lists all)")


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


def looks_of(args: argparse.Namespace, view: View, *, remote: bool) -> ScreenSettings:
    """Return the settings of a screen by the flags of `add_looks`, and the theme of the last one; ``view`` draws as they ask for."""
    from gputop.system import screenstate
    from gputop.tui.feed import ScreenSettings

    view.ascii_only = draws_ascii(args.ascii)
    if args.theme and args.theme not in (names := _theme_names()):
        raise UserError(f"there is no theme {clean(args.theme, 40)}: there are {', '.join(names)}", code=2)
    return ScreenSettings(_LIGHT if args.light else args.theme or screenstate.load().theme, remote=remote)


def _theme_names() -> list[str]:
    from textual.theme import BUILTIN_THEMES

    from gputop.tui.colours import themes

    return [theme.name for theme in (*themes(), *BUILTIN_THEMES.values())]


def import_asyncio() -> None:
    """Import asyncio before Textual does, without OpenSSL: 1.4 MiB and 10 ms, and no screen speaks TLS by asyncio."""
    with without("ssl"):
        import asyncio  # noqa: F401


def watch(app: GputopApp) -> int:
    """Run the app until the user leaves, give the terminal back whatever ended the app, and close its stream.

    Returns the exit code. UserError for wrong keys in the user's configuration.
    """
    try:
        if wrong := app.use_keys(config.key_map()):
            raise UserError(f"{config.paths()[-1]}: [keys] {wrong}", code=2)
        app.run(mouse=app.context.look.mouse)
    finally:
        tty.give_back()
        app.context.feed.close()
    return app.return_code or 0


class Pacer:
    """Paces the feed: after each reading the app draws, then the feed waits.

    Several samples share a column, so the wait loses nothing, and drawing directly after reading finds its data in the CPU's caches.
    """

    def __init__(self) -> None:
        self.app: GputopApp | None = None

    def __call__(self) -> float:
        """Draw; the seconds until more is read."""
        if self.app is None:
            return 0.0
        self.app.on_news()
        view = self.app.context.view
        return min(max(LEAST_S, COLUMNS * view.window_s / max(1, view.cells)), MOST_S)
