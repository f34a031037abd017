"""Write the stream of frames to standard output, until it is closed.

The screen runs this command as its collector; `ssh node gputop collect | gputop replay -` watches another machine. With --summary the
node diagnoses itself, and writes its findings every second, for a watcher of many nodes.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gputop.commands.options import add_sampling, number, sampling_argv, sampling_settings
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory

if TYPE_CHECKING:
    from gputop.stream.playback import PlayedClock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling(parser)
    parser.add_argument("--summary", action="store_true", help="a diagnosis a second in place of frames, and answers to standard input")
    parser.add_argument("--from", dest="source", metavar="FILE", help="with --summary: play a recording as if it happened now")
    parser.add_argument("--shift", type=float, metavar="S", help="with --from: move its clock by so many seconds (to begin now)")
    parser.add_argument("--clock", type=played_clock, metavar="C", help="with --from: play it by a clock: WALL,UNIX,SPEED")
    parser.add_argument("--lines", action="store_true", help="with --summary: as lines of text, for srun and pdsh")
    parser.add_argument("--frames", type=number(), metavar="N", help="stop after N frames")


def played_clock(text: str) -> PlayedClock:
    """``1764374400.000,1764288000.000,2``: what it is on the recorded clocks at a moment of ours, and how fast they run."""
    from gputop.stream.playback import read_clock

    try:
        return read_clock(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no clock: write WALL,UNIX,SPEED") from None


def run(args: argparse.Namespace) -> int:
    """Collect until the reader closes the pipe, or a signal comes."""
    if sys.stdout.isatty() and not args.lines:
        raise UserError("the stream is binary: send it to a file or a pipe, as in: gputop collect > session.gputop", code=2)
    if (args.source or args.lines) and not args.summary:
        raise UserError("--from and --lines need --summary", code=2)
    return_freed_memory()
    if args.summary:
        return _summarize(args)
    from gputop.collector.streaming import stream

    stream(sampling_settings(args), args.frames)
    return 0


def _summarize(args: argparse.Namespace) -> int:
    """Follow a collector of this machine, and write each second what is wrong."""
    from gputop.fleet.node import Out, serve_node
    from gputop.recording.pipe import ReaderGone
    from gputop.stream.child import ChildStream, collector_argv
    from gputop.stream.played import PlayedStream

    calm_garbage_collection()
    out = Out(sys.stdout.fileno(), args.lines)
    stream = PlayedStream(args.source, args.shift, args.clock) if args.source else ChildStream(collector_argv(sampling_argv(args)))
    try:
        serve_node(stream, sys.stdin.fileno(), out)
    except ReaderGone:
        pass
    return 0
