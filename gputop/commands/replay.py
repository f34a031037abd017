"""Replay a recording on the screen of the live view. FILE `-` is a stream from standard input."""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import sys
from typing import TYPE_CHECKING

from gputop.commands.screen import Pacer, add_looks, looks_of, use_terminal, watch
from gputop.commands.span import MOMENT
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.program import FOLDER, calm_garbage_collection
from gputop.system.text import from_shell

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

EXAMPLES = """examples:
  gputop replay run.gputop
  gputop replay run.gputop --at 03:12 --speed 4
  gputop replay run*.gputop --at 03:12            the files of a rotation as one
  gputop replay run/ --at 03:12                   the hosts of gputop record --host LIST -o run, together
  gputop replay --sample                          the recording that comes with gputop
  ssh node7 gputop collect | gputop replay -      another machine, live
keys: space play  < > speed  f F step  ( ) 10 s  { } 1 min  n N incidents  @ go to a time  a loop  ? all
"""
INSTEAD = "gputop explain {}, gputop query or gputop export"
LEAST_SPEED, MOST_SPEED = 0.25, 64.0


def speed(text: str) -> float:
    """0.25 to 64."""
    try:
        value = float(text.rstrip("x×"))
    except ValueError:
        value = 0.0
    if not LEAST_SPEED <= value <= MOST_SPEED:
        raise argparse.ArgumentTypeError(f"{text!r} is no speed from {LEAST_SPEED:g} to {MOST_SPEED:g}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="a recording, files of a rotation, a folder of hosts; - is standard input")
    parser.add_argument("--sample", action="store_true", help="the recording that comes with gputop")
    parser.add_argument("--speed", type=speed, default=1.0, metavar="X", help="0.25 to 64 times as fast (1)")
    parser.add_argument("--at", type=from_shell, metavar="T", help=f"begin here: {MOMENT}")
    parser.add_argument("--loop", action="store_true", help="start again at the end")
    add_looks(parser)


def run(args: argparse.Namespace) -> int:
    """Show the recording until the user leaves."""
    if args.sample == bool(args.files):
        raise UserError("name one recording, or --sample (see gputop replay --help)", code=2)
    if "-" in args.files[1:] or args.files[:1] == ["-"] != args.files:
        raise UserError("standard input is replayed alone: gputop replay -", code=2)
    if len(args.files) == 1 and os.path.isdir(args.files[0]):
        from gputop.commands import fleet

        return fleet.replay(args, args.files[0])
    if args.files == ["-"] and not stat.S_ISREG(os.fstat(0).st_mode):
        return _watch_pipe(args)
    return _replay_files(args, [sample()] if args.sample else args.files)


def sample() -> str:
    """Path of the recording that comes with gputop."""
    return os.path.join(FOLDER, "data", "sample.gputop")


def _replay_files(args: argparse.Namespace, paths: list[str]) -> int:
    if paths == ["-"]:
        paths = [f"/proc/{os.getpid()}/fd/{_keys_from_terminal()}"]
    from gputop.recording.parts import open_recording

    with open_recording(paths) as recording:
        at_ns = _start(recording, args.at)
        use_terminal(INSTEAD.format(shlex.join(paths)))
        return _play(args, recording, paths, at_ns)


def _start(recording: Recording, at: str | None) -> int:
    """The moment to begin at. UserError for a recording without frames."""
    from gputop.stream.moment import moment_within

    if not len(recording.chunks()):
        raise UserError(f"{recording.path} holds no frames{'' if recording.growing else ': nothing was recorded'}")
    return recording.start_ns if at is None else moment_within(at, recording)


def _play(args: argparse.Namespace, recording: Recording, paths: list[str], at_ns: int) -> int:
    from gputop.stream.playback import Playback
    from gputop.stream.survey import Survey
    from gputop.tui.app import GputopApp
    from gputop.tui.draw.view import View
    from gputop.tui.replay_screen import replay_context

    survey = Survey(paths)
    calm_garbage_collection()
    view = View(grows=True)
    look = looks_of(args, view, remote=True)
    app = GputopApp(replay_context(view, recording, Playback(at_ns, args.speed, loop=args.loop), survey, look))
    try:
        code = watch(app)
    finally:
        survey.close()
    if problem := survey.problem or recording.problem:
        notify(f"{recording.path}: {problem}")
    return code


def _watch_pipe(args: argparse.Namespace) -> int:
    """Show a stream live, with the last ten minutes to look back at."""
    if args.at is not None or args.loop or args.speed != 1.0:
        raise UserError("--at, --speed and --loop need a file: a stream from standard input is shown as it comes", code=2)
    if sys.stdin.isatty():
        raise UserError("standard input is this terminal: ssh NODE gputop collect | gputop replay -")
    from gputop.stream.child import PipeStream

    pacer = Pacer()
    stream = PipeStream(_keys_from_terminal())
    use_terminal(INSTEAD.format("FILE"))
    stream.begin()
    from gputop.stream.session import Session
    from gputop.tui.app import GputopApp
    from gputop.tui.draw.view import View
    from gputop.tui.feed import live_context

    calm_garbage_collection()
    view = View(grows=True)
    look = looks_of(args, view, remote=True)
    app = GputopApp(live_context(Session(), view, None, stream, look, pacer))
    pacer.app = app
    return watch(app)


def _keys_from_terminal() -> int:
    """Make the terminal standard input; returns a descriptor of what was standard input before."""
    data = os.dup(0)
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        raise UserError("there is no terminal to show it on and take keys from") from None
    os.dup2(terminal, 0)
    os.close(terminal)
    return data
