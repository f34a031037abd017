"""Take a torch.profiler trace of a running job from outside, and check gputop's verdict by it.

Without PID: the trainers that can be asked. A job can be asked if it was started by `gputop run -- COMMAND` (or `record --`, `watch --`),
or after `eval "$(gputop env)"`. With --read only a file is read.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from gputop.commands.options import WRITER, add_sampling, ask_sudo, duration, leave_root, no_process, number, process_id, runs, stream_argv
from gputop.system.colour import width_of
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.model.trace import TracedJob

EXAMPLES = """examples:
  gputop run -- python train.py                start a job that can be asked
  gputop trace                                 ten steps of each trainer that can be asked
  gputop trace 3821 --seconds 2 --with-stack   which Python lines launch most; stacks cost the job more
  gputop trace --read trace.json               read a trace that was taken before
  gputop trace --flight                        a job hangs: which rank did not come to which collective
"""
MOST_ITERATIONS = 1000
_READERS = ("gputop.traces", *WRITER)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pids", type=process_id, nargs="*", metavar="PID", help="processes that launch kernels: trainers, each rank")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--iterations", type=number(), metavar="N", help="about so many steps, by the pace seen (10); else 1 s")
    length.add_argument("--seconds", type=duration("100ms", "60s"), metavar="TIME", help="a time instead of steps, 0.1s to 60s")
    parser.add_argument("--with-stack", action="store_true", help="Python stacks too; the job is slower meanwhile")
    parser.add_argument("--inject", action="store_true", help="started without `run`: its Python, 3.14 as gputop's, runs a script")
    parser.add_argument("--timeout", type=duration("1s", "1h"), default=60.0, metavar="TIME", help="give up after so long (60s)")
    parser.add_argument("-o", "--output", default=".", metavar="DIR", help="folder of the files gputop-trace-PID-TIME.json (here)")
    parser.add_argument("--read", metavar="FILE", nargs="+", help="read a trace, and ask nobody; with --flight a job's dumps")
    parser.add_argument("--flight", action="store_true", help="which rank did not come to which collective, by torch's flight recorder")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_sampling(parser)
    parser.set_defaults(host=None)


def run(args: argparse.Namespace) -> int:
    """Print what the traces hold. Returns 1 if one of them could not be taken."""
    from gputop.findings.traces import SCHEMA, Traces, lines
    from gputop.model.trace import TracedJob

    if args.read is not None and args.pids:
        raise UserError("--read is for a file: leave the processes out", code=2)
    if args.flight:
        return _print_flights(args)
    if args.read is not None:
        if len(args.read) > 1:
            raise UserError("--read takes one trace; several dumps of a flight recorder with --flight", code=2)
        from gputop.findings.traces import checks
        from gputop.traces.reading import read

        reading = read(args.read[0])
        jobs = [TracedJob(0, clean(os.path.basename(args.read[0])), 0.0, reading, checks(reading, {}))]
    else:
        jobs = _taken(args)
    if args.json:
        import msgspec

        write(msgspec.json.encode(Traces(SCHEMA, jobs)) + b"\n")
    else:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH

        show(lines(jobs, width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)))
    return int(any(job.reading is None for job in jobs))


def _print_flights(args: argparse.Namespace) -> int:
    """Print what flight recorders hold, of ranks that run or of files. Returns 1 if a rank that was asked has not dumped."""
    from gputop.findings.flights import lines
    from gputop.model.flight import SCHEMA, Flights
    from gputop.traces.environment import HOW
    from gputop.traces.flight import read_files
    from gputop.traces.pipes import ask, recorded

    if args.read is not None:
        found = [read_files(args.read)]
    else:
        for pid in args.pids:
            if not runs(pid):
                raise UserError(no_process(pid))
        ask_sudo(args)
        found = ask(args.pids or recorded(), min(args.timeout, 60.0))
        if not found:
            raise UserError(f"no rank here has a flight recorder that can be asked: {HOW}, with torch 2.5 or later and NCCL")
    if args.json:
        import msgspec

        write(msgspec.json.encode(Flights(SCHEMA, found)) + b"\n")
    else:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH

        width = width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)
        show(line for job in found for line in lines(job, width))
    return int(args.read is None and any(rank.error is not None for job in found for rank in job.ranks))


def _taken(args: argparse.Namespace) -> list[TracedJob]:
    from gputop.stream.kept_traces import mark_of
    from gputop.stream.marking import send_mark
    from gputop.stream.traced import named, trace_now
    from gputop.traces.environment import HOW, waiting
    from gputop.traces.taking import Wanted

    for pid in args.pids:
        if not runs(pid):
            raise UserError(no_process(pid))
    if args.inject:
        from gputop.system.errors import Unavailable
        from gputop.traces.inject import check_python

        if not args.pids:
            raise UserError("--inject changes what a process runs: name its PID", code=2)
        try:
            check_python()
        except Unavailable as why:
            raise UserError(f"{why.reason}: {why.remedy}") from None
    if (args.iterations or 1) > MOST_ITERATIONS:
        raise UserError(f"--iterations: at most {MOST_ITERATIONS}", code=2)
    if not args.pids and not waiting():
        raise UserError(f"no job here can be asked for a trace: {HOW}")
    if not os.path.isdir(args.output):
        raise UserError(f"there is no folder {args.output}")
    ask_sudo(args)
    wanted = Wanted(args.seconds or 1.0, args.with_stack, args.timeout, args.inject)
    steps = 0 if args.seconds else args.iterations or 10
    jobs = trace_now(stream_argv(args), args.pids, wanted, steps, named(args.output), notify, lambda: leave_root(*_READERS))
    for job in jobs:
        if job.reading is not None:
            send_mark(mark_of(0, job).text)  # recordings that are made meanwhile name the file
    return jobs
