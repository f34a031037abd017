"""gputop: what the GPUs do and what the host does to them, on one time axis."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gputop.commands.goodbye import AT_HOME, PROVES, RECORDS, add_goodbye, say_goodbye
from gputop.commands.options import (
    LINE_FORMS,
    SCREEN,
    add_alerts,
    add_sampling,
    alerts_of,
    ask_sudo,
    check_chosen,
    leave_root,
    process_id,
    stream_argv,
)
from gputop.commands.screen import Pacer, add_looks, import_asyncio, looks_of, use_terminal, watch
from gputop.system import tty
from gputop.system.console import draws_ascii, notify
from gputop.system.errors import UserError
from gputop.system.imports import import_msgspec
from gputop.system.program import calm_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from gputop.commands.goodbye import Steps
    from gputop.stream.session import Session
    from gputop.system.screenstate import Saved
    from gputop.tui.draw.view import View
    from gputop.tui.feed import ScreenGuide

EXAMPLES = """examples: gputop --host 'node[01-16]', gputop --once --json"""
MOST_NOTES = 4  # lines about alerts that wait to be shown


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
    parser.add_argument("--no-auto-trace", action="store_true", help="take no torch.profiler trace when a GPU's trouble lasts")
    add_alerts(parser)
    add_looks(parser)
    add_goodbye(parser)


def way(args: argparse.Namespace) -> str:
    """Return the module that does it: several machines (`fleet`), what is printed (`once`), or the screen (`live`). UserError for a host
    that cannot be read."""
    if args.line and args.json:
        raise UserError("--line or --json, not both", code=2)
    if any(option is not None for option in (args.hosts, args.job, args.pods)):
        return "fleet"
    if args.host is not None:
        from gputop.fleet.targets import by_names

        named = by_names(args.host, None)
        if len(named) > 1:
            return "fleet"
        args.host = named[0].host
    if args.once or args.json or args.line:
        import_msgspec()
        return "once"
    return "live"


def run(args: argparse.Namespace, guide: ScreenGuide | None = None) -> int:
    """Watch until the user leaves. ``guide`` leads through the screen (`gputop demo`)."""
    check_chosen(args)
    began_s = time.monotonic()
    use_terminal("gputop --once, gputop --once --json, or gputop record")
    ask_sudo(args)
    notes: deque[str] = deque(maxlen=MOST_NOTES)
    alerts, argv = alerts_of(args, notes.append), stream_argv(args)
    if args.host is not None:
        leave_root(*SCREEN)  # ssh uses the user's keys and known hosts
    from gputop.stream.child import ChildStream

    first = ChildStream(argv, most=1)
    leave_root(*SCREEN)
    # The collector starts during the imports, so that the screen begins with data.
    return_freed_memory()
    from gputop.system import screenstate  # imports msgspec, as the next ones do
    from gputop.tui.draw.view import View

    view = View(pid=args.pid, user=args.user, readonly=args.readonly, ascii_only=draws_ascii(args.ascii))
    _begin_as_left(view, screenstate.load())
    with ExitStack() as after:
        after.callback(tty.give_back)
        if args.host is None:
            from gputop.commands.opening import show_first

            view.width, view.height = os.get_terminal_size(sys.stdout.fileno())
            show_first(first, view)
        import_asyncio()
        from gputop.stream.session import Session
        from gputop.tui.app import GputopApp
        from gputop.tui.feed import live_context

        session, pacer = Session(), Pacer()
        session.engine.load_causes()  # unless `show_first` did: messages about broken plug-ins come before the dashboard
        calm_garbage_collection()
        look = looks_of(args, view, remote=args.host is not None)
        look.auto_stacks, look.guide, look.note = not args.no_auto_stacks, guide, left_behind()
        look.auto_trace = not (args.no_auto_trace or args.readonly)
        app = GputopApp(live_context(session, view, lambda: ChildStream(argv, most=1), first, look, pacer))
        pacer.app, app.context.feed.notes = app, notes
        if alerts is not None:
            from gputop.alerts import terminal

            app.tell_alerts = alerts.look
            after.callback(alerts.close)
            after.enter_context(terminal.drawn_by(app.send_sequence))
        code = watch(app)
    for line in (*notes, look.note):  # the note on the screen ends with the first key
        if line:
            notify(line)
    if code == 0 and not app.context.feed.trouble:
        with session.lock:
            say_goodbye(args, session.following, began_s, _onward(args, session))
    window_s = None if view.grows else view.window_s
    screenstate.save(
        screenstate.Saved(window_s, view.sort, view.reverse, view.tree, app.chosen_theme, view.columns, view.lanes)
    )
    return code


def _onward(args: argparse.Namespace, session: Session) -> Steps:
    """What to do after the screen."""
    if session.header is not None and session.header.simulated:
        return AT_HOME
    if args.host is not None:
        return ((f"gputop record --host {shlex.quote(args.host)} -o run.gputop", RECORDS[1]),)
    lasts = any(one.end_ns is None and one.culprits for one in session.engine.incidents)
    return (*((PROVES,) if lasts else ()), RECORDS)


def _begin_as_left(view: View, left: Saved) -> None:
    """Make the view what the last screen was when it was left."""
    from gputop.model.fields import FIELDS
    from gputop.tui.draw.table import SORTS, TITLES

    view.grows = left.window_s is None
    view.window_s = left.window_s or view.window_s
    view.sort = left.sort if left.sort in SORTS else view.sort
    view.reverse, view.tree = left.reverse, left.tree
    view.columns = tuple(title for title in left.columns if title in TITLES)
    view.lanes = tuple(field for field in left.lanes if field in FIELDS)


def left_behind() -> str:
    """A line about an experiment that was not undone because both gputop and its guardian were killed; else empty."""
    from gputop.prove import host

    if not any(map(host.names, host.folders())):
        return ""  # without the imports
    from gputop.prove.journal import leftovers

    return "an experiment has left something changed: gputop prove --undo puts it back" if leftovers() else ""
