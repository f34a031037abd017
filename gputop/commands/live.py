"""gputop: what the GPUs do and what the host does to them, on one time axis."""

from __future__ import annotations

import argparse
from collections import deque
from typing import TYPE_CHECKING

from gputop.commands.options import (
    LINE_FORMS,
    SCREEN,
    add_alerts,
    add_sampling,
    alerts_of,
    ask_sudo,
    check_pid,
    check_user,
    leave_root,
    process_id,
    refuse_alerts,
    stream_argv,
)
from gputop.commands.screen import add_looks, use_terminal, watch
from gputop.system import config
from gputop.system.console import draws_ascii, notify
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from gputop.commands.screen import Guide
    from gputop.stream.session import Session
    from gputop.tui.app import GputopApp

EXAMPLES = """examples:
  gputop --host 'node[01-16]'  other machines, over ssh, and their jobs
  gputop --once --json         one object for a script
"""
MOST_NOTES = 4  # lines about alerts that wait to be shown
LEAST_S, MOST_S = 0.25, 0.5  # s between two readings of the stream: about a column of the lanes, within these bounds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling(parser)
    parser.add_argument("--pid", type=process_id, metavar="PID", help="list only this process and its family")
    parser.add_argument("--user", metavar="NAME", help="list only processes of this user")
    parser.add_argument("--host", metavar="[USER@]NODE", help="another machine over ssh, or several: node01-16")
    parser.add_argument("--hosts", metavar="FILE", help="watch the machines that a file lists, one a line")
    parser.add_argument("--job", nargs="?", const="", metavar="ID", help="the nodes of a Slurm job (inside one: its own)")
    parser.add_argument("--reach", choices=("srun", "ssh"), default="srun", help="with --job: how its nodes are reached (srun)")
    parser.add_argument("--pods", metavar="SELECTOR", help="pods with these labels (app=train), by kubectl")
    parser.add_argument("-n", "--namespace", default="", metavar="NS", help="with --pods: their namespace (kubectl's own)")
    parser.add_argument("-1", "--once", action="store_true", help="print one screen, or with --json one object, and leave")
    parser.add_argument("--json", action="store_true", help="print an object a line; with --once just one")
    parser.add_argument(
        "--line", nargs="?", const=LINE_FORMS[0], choices=LINE_FORMS, metavar="FORM", help="one line for a status bar: plain, tmux, waybar"
    )
    parser.add_argument("--readonly", action="store_true", help="no signals to processes, and no experiments")
    parser.add_argument("--no-auto-stacks", action="store_true", help="do not take stacks when an incident begins")
    add_alerts(parser)
    add_looks(parser)


def run(args: argparse.Namespace, guide: Guide | None = None, caption: Callable[[Session], str] | None = None) -> int:
    """Watch, or print once. ``guide`` drives the screen (`gputop demo tour`), ``caption`` says what happens on it (`gputop demo`)."""
    if args.line and args.json:
        raise UserError("--line or --json, not both", code=2)
    if any(option is not None for option in (args.host, args.hosts, args.job, args.pods)):
        from gputop.commands import fleet

        chosen = fleet.chosen_targets(args)
        if len(chosen) > 1 or args.host is None:
            refuse_alerts(args)
            return fleet.run(args, chosen)
        args.host = chosen[0].host
    if args.host is None:
        check_pid(args.pid)
        check_user(args.user)
    if args.once or args.json or args.line:
        if not args.once:
            ask_sudo(args)
        from gputop.commands.once import run_once

        return run_once(args)
    use_terminal("gputop --once, gputop --once --json, or gputop record")
    ask_sudo(args)
    from gputop.stream.child import ChildStream

    argv = stream_argv(args)
    notes: deque[str] = deque(maxlen=MOST_NOTES)
    alerts = alerts_of(args, notes.append)
    pacer = Pacer()
    if args.host is not None:
        leave_root(*SCREEN)  # ssh uses the user's keys and known hosts
    first = ChildStream(argv, most=1)
    leave_root(*SCREEN)
    # The collector starts during the imports, so that the screen begins with data.
    return_freed_memory()
    from gputop.stream.session import Session
    from gputop.tui.app import GputopApp
    from gputop.tui.draw.table import SORTS
    from gputop.tui.draw.view import USUAL_WINDOW_S, View
    from gputop.tui.feed import ScreenSettings, live_context

    session = Session()
    session.engine.load_causes()  # a plug-in that is broken is told before the screen takes the terminal
    calm_garbage_collection()
    left = config.load_screen()
    view = View(
        pid=args.pid, user=args.user, ascii_only=draws_ascii(args.ascii), readonly=args.readonly,
        window_s=left.window_s or USUAL_WINDOW_S, grows=left.window_s is None, sort=left.sort if left.sort in SORTS else "natural",
        reverse=left.reverse, tree=left.tree,
    )  # fmt: skip
    theme = "gputop-light" if args.light else "gputop-dark"
    look = ScreenSettings(theme, remote=args.host is not None, auto_stacks=not args.no_auto_stacks, caption=caption)
    app = GputopApp(live_context(session, view, lambda: ChildStream(argv, most=1), first, look, pacer))
    pacer.app = app
    app.context.feed.notes = notes
    if alerts is not None:
        from gputop.alerts import terminal

        app.tell_alerts, terminal.draw = alerts.look, app.send_sequence
    look.note = left_behind()
    code = watch(app, "" if args.light else left.theme, guide)
    if alerts is not None:
        terminal.draw = None
        alerts.close()
    for line in notes:
        notify(line)
    if look.note:
        notify(look.note)  # the note on the screen ends with the first key
    config.save_screen(config.Saved(None if view.grows else view.window_s, view.sort, view.reverse, view.tree, app.theme))
    return code


def left_behind() -> str:
    """A line about an experiment that was not undone because both gputop and its guardian were killed; empty if there is none."""
    from gputop.prove import host

    if not any(map(host.names, host.folders())):
        return ""  # without the imports
    from gputop.prove.journal import leftovers

    return "an experiment has left something changed: gputop prove --undo puts it back" if leftovers() else ""


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
        return min(max(LEAST_S, view.window_s / max(1, view.cells)), MOST_S)
