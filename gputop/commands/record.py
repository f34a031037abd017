"""Record until Ctrl-C, for a time, or while a command runs; the command's exit code is passed on. With sudo only the probes are root's;
file and command are the user's.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time

from gputop.commands.goodbye import add_goodbye, say_goodbye
from gputop.commands.options import RECORDER, add_alerts, add_sampling, alerts_of, duration, leave_root, number, refuse_alerts, size
from gputop.commands.unattended import EXPORTER, add_metrics, alerting, check_metrics, command_of, exporting, lasting_stream, refuse_metrics
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.program import return_freed_memory

EXAMPLES = """examples:
  gputop record -o run.gputop -- python train.py
  gputop record --host 'node[01-16]' -o run      a file a host; gputop replay run shows them together
  gputop record --keep 30d --max-size 1G         a month: ticks around incidents and markers, seconds of days, minutes of all
with --keep and -o node.gputop each start makes a file (node.gputop, node.2.gputop …); older ones are thinned with it, and go when too old
a growing recording can be opened; recording pauses while less than 15% of the disk (4 GB at most) is free
"""
LEAST_KEPT_BYTES = 32 << 20  # of --max-size with --keep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="a new file (gputop-HOST-DATE-TIME.gputop)")
    parser.add_argument("--duration", type=duration(), metavar="TIME", help="stop after 90s, 10m, 2h")
    parser.add_argument("--max-size", type=size, metavar="SIZE", help="begin the next file, .2, .3 …, before this one is larger")
    parser.add_argument("--max-files", type=number(), default=0, metavar="N", help="with --max-size: keep only the newest N files (all)")
    parser.add_argument("--keep", type=duration("10m"), metavar="TIME", help="with --max-size: hold 30d, 12h in all, older is coarser")
    parser.add_argument("--host", metavar="[USER@]NODE", help="another machine over ssh, or several: node01-16")
    parser.add_argument("--hosts", metavar="FILE", help="record the machines that a file lists, one a line")
    parser.add_argument("--no-auto-stacks", action="store_true", help="do not take stacks when an incident begins")
    parser.add_argument("--no-auto-trace", action="store_true", help="take no torch.profiler trace when a GPU's trouble lasts")
    add_alerts(parser)
    add_metrics(parser)
    add_sampling(parser)
    add_goodbye(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="record while this runs")


def run(args: argparse.Namespace) -> int:
    """Record. Returns the command's exit code, if there is a command (128 + number after a signal)."""
    if args.max_files and not args.max_size:
        raise UserError("--max-files needs --max-size", code=2)
    if args.keep and (args.max_files or (args.max_size or 0) < LEAST_KEPT_BYTES):
        raise UserError("--keep needs --max-size of at least 32M, and no --max-files", code=2)
    argv = command_of(args)
    if args.output == "-":
        raise UserError("a recording is a file: for standard output there is gputop collect", code=2)
    if args.host is not None or args.hosts is not None:
        from gputop.commands import record_fleet
        from gputop.fleet.targets import by_names

        chosen = by_names(args.host, args.hosts)
        if len(chosen) > 1 or args.hosts is not None:
            refuse_alerts(args)
            refuse_metrics(args)
            return record_fleet.run(args, chosen)
    alerts = alerts_of(args, notify)
    check_metrics(args)
    return_freed_memory()
    began_s = time.monotonic()
    stream = lasting_stream(args)
    from gputop.stream.command import Command
    from gputop.stream.reader import Loop

    with Loop(stream, command := Command(argv), duration_s=args.duration, notify=notify) as loop:
        leave_root(*RECORDER, *(EXPORTER if args.metrics else ()), "gputop.alerts")  # the file and the command belong to the user
        from gputop.stream.recorder import Recorder
        from gputop.stream.stalled import AutoStacks, Unwatched

        # Stacks can be taken on this machine only.
        policy = None if args.no_auto_stacks or args.host is not None else AutoStacks()
        from gputop.stream.autotrace import AutoTracing

        folder = os.path.dirname(args.output or "")
        judging = Unwatched(
            policy, notify=notify, goes_on="recording goes on without the diagnosis",
            traces=None if args.no_auto_trace or args.host is not None else lambda deliver: AutoTracing(deliver, lambda: folder),
        )  # fmt: skip
        recorder = Recorder(
            judging, command, path=args.output, max_bytes=args.max_size, max_files=args.max_files, keep_s=args.keep,
        )  # fmt: skip
        loop.add(judging, *alerting(alerts, judging), *exporting(args, judging), recorder)
        command.listen()
        loop.begin("recorded")
        try:
            command.start()
        except UserError:
            recorder.discard()
            raise
        command.attend()
    if recorder.path and not judging.problem:
        replays = f"gputop replay {shlex.quote(recorder.path)}", "shows it again, on the same screen"
        say_goodbye(args, judging.following, began_s, (replays,))
    return command.code() if argv else int(bool(recorder.problem))
