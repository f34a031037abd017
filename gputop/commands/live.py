"""gputop: what the GPUs do and what the host does to them, on one time axis."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from gputop.commands.options import SCREEN, add_sampling, ask_sudo, check_pid, check_user, leave_root, process_id, stream_argv
from gputop.system import config
from gputop.system.console import draws_ascii, notify
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.pilot import Pilot

    from gputop.tui.app import GputopApp

    Guide = Callable[[Pilot[object]], Coroutine[Any, Any, None]]

EXAMPLES = """examples:
  gputop                       watch
  gputop --pid 3821            one trainer and its workers
  gputop --host node7          another machine, over ssh
  gputop --once --json         one object for a script
"""
LEAST_S, MOST_S = 0.25, 0.5  # s between two readings of the stream: about a column of the lanes, within these bounds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling(parser)
    parser.add_argument("--pid", type=process_id, metavar="PID", help="list only this process and its family")
    parser.add_argument("--user", metavar="NAME", help="list only processes of this user")
    parser.add_argument("--host", metavar="[USER@]NODE", help="watch another machine: runs `gputop collect` there over ssh")
    parser.add_argument("-1", "--once", action="store_true", help="print one screen, or with --json one object, and leave")
    parser.add_argument("--json", action="store_true", help="print an object a line; with --once just one")
    parser.add_argument("--readonly", action="store_true", help="no signals to processes, and no experiments")
    parser.add_argument("--no-auto-stacks", action="store_true", help="do not take stacks when an incident begins")
    add_looks(parser)


def run(args: argparse.Namespace, guide: Guide | None = None) -> int:
    """Watch, or print once. ``guide`` drives the screen (`gputop demo tour`)."""
    if args.host is None:
        check_pid(args.pid)
        check_user(args.user)
    if args.once or args.json:
        if not args.once:
            ask_sudo(args)
        from gputop.commands.once import run_once

        return run_once(args)
    use_terminal("gputop --once, gputop --once --json, or gputop record")
    ask_sudo(args)
    from gputop.session.child import ChildStream

    argv = stream_argv(args)
    pacer = Pacer()
    if args.host is not None:
        leave_root(*SCREEN)  # ssh uses the user's keys and known hosts
    first = ChildStream(argv, pacer)
    leave_root(*SCREEN)
    # The collector starts during the imports, so that the screen begins with data.
    return_freed_memory()
    from gputop.session.session import Session
    from gputop.tui.app import GputopApp
    from gputop.tui.draw.table import SORTS
    from gputop.tui.draw.view import View
    from gputop.tui.feed import Look, live_context

    calm_garbage_collection()
    left = config.load_screen()
    view = View(
        pid=args.pid, user=args.user, ascii_only=draws_ascii(args.ascii), readonly=args.readonly,
        window_s=left.window_s, sort=left.sort if left.sort in SORTS else "natural",
        reverse=left.reverse, tree=left.tree,
    )  # fmt: skip
    look = Look("gputop-light" if args.light else "gputop-dark", remote=args.host is not None, auto_stacks=not args.no_auto_stacks)
    app = GputopApp(live_context(Session(), view, lambda: ChildStream(argv, pacer), first, look))
    pacer.app = app
    look.note = left_behind()
    code = watch(app, "" if args.light else left.theme, guide)
    if look.note:
        notify(look.note)  # the note on the screen ends with the first key
    config.save_screen(config.Saved(view.window_s, view.sort, view.reverse, view.tree, app.theme))
    return code


def left_behind() -> str:
    """A line about an experiment that nobody undid, for both gputop and its guardian died; empty if there is none."""
    folder = os.path.join(os.path.dirname(config.state_path()), "experiments")
    if not os.path.isdir(folder) or not os.listdir(folder):
        return ""  # without the imports
    from gputop.experiments.journal import leftovers

    return "an experiment has left something changed: gputop prove --undo puts it back" if leftovers() else ""


# what commands with a screen share


class Pacer:
    """Paces the reader of the stream: after each reading the app draws, then the reader waits.

    Several samples share a column, so the wait loses nothing, and drawing directly after reading finds its data in the CPU's caches.
    """

    def __init__(self) -> None:
        self.app: GputopApp | None = None

    def __call__(self) -> None:
        if self.app is not None:
            self.app.on_news()
            view = self.app.context.view
            self.app.context.feed.closing.wait(min(max(LEAST_S, view.window_s / max(1, view.cells)), MOST_S))


def add_looks(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every screen has."""
    parser.add_argument("--ascii", action="store_const", const=True, help="no character beyond ASCII, as where the locale is no UTF-8")
    parser.add_argument("--no-ascii", dest="ascii", action="store_const", const=False, help="every character, whatever the locale is")
    parser.add_argument("--light", action="store_true", help="colours for a light terminal")


def use_terminal(instead: str) -> None:
    """Raise UserError where no screen can be shown; ``instead`` names what to use then.

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
    """Run the app until the user leaves, then close its stream; returns the exit code. ``theme`` is the saved one, empty for none."""
    try:
        _apply_config(app, theme)
        app.run(mouse=app.context.look.mouse, auto_pilot=guide)
    finally:
        app.context.feed.close()
    return app.return_code or 0


def _apply_config(app: GputopApp, theme: str) -> None:
    """Set the saved theme and the user's key map. UserError for wrong keys."""
    if theme in app.available_themes:
        app.theme = theme
    if wrong := app.use_keys(config.key_map()):
        raise UserError(f"{config.config_path()}: [keys] {wrong}", code=2)
