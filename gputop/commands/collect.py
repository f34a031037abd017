"""Write the stream of frames to standard output, until it is closed.

The screen runs this command as its collector; `ssh node gputop collect | gputop replay -` watches another machine.
"""

from __future__ import annotations

import argparse
import signal
import sys

from gputop.commands.options import add_sampling, number, sampling_settings
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.program import calm_garbage_collection, return_freed_memory

LAST_S = 0.5  # s for a slow reader to take the last frames after a signal; after --frames it may take any time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sampling(parser)
    parser.add_argument("--frames", type=number(), metavar="N", help="stop after N frames")


def run(args: argparse.Namespace) -> int:
    """Collect until the reader closes the pipe, or a signal comes."""
    if sys.stdout.isatty():
        raise UserError("the stream is binary: send it to a file or a pipe, as in: gputop collect > session.gputop", code=2)
    return_freed_memory()
    from gputop.collector.beat import Collector, make_header
    from gputop.recording.pipe import PipeSink, ReaderGone

    calm_garbage_collection()
    settings = sampling_settings(args)
    try:
        sink = PipeSink(sys.stdout.fileno(), make_header(settings))
        collector = Collector(settings, sink, leaves_root=True)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: collector.stop())
        collector.run(args.frames, sink.wait)
        while not collector.stopping and sink.close(LAST_S):
            pass
        if left := sink.close(LAST_S):
            notify(f"the reader is too slow: the last {left} bytes were not read, and the stream ends within a frame")
    except ReaderGone:
        return 0
    return 0
