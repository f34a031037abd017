"""Explain a recording, or without FILE this machine now: the verdict, lost GPU time by cause, incidents with evidence and fixes."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gputop.commands.options import RECORDER, add_sampling, ask_sudo, leave_root, stream_argv
from gputop.commands.span import add_span, span_of
from gputop.findings.explanation import Episode
from gputop.findings.trouble import is_fault
from gputop.findings.verdict import SEVERITIES
from gputop.system.colour import takes_colour, width_of
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from gputop.findings.explanation import Explanation
    from gputop.stream.explained import ExplainedStretch

EXAMPLES = """examples:
  gputop explain                          look for 10 s, then explain
  gputop explain --sample                 the recording that comes with gputop
  gputop explain run.gputop --last 2m     the last two minutes of a recording
  gputop explain run.gputop --from "epoch 3" --until "epoch 4"
  gputop explain --json --fail-on medium  for CI: exit code 3 where something is wrong
"""
LIVE_S = 10.0  # of this machine, without --last
FAILED_ON = 3  # exit code
_OF_A_FILE = {"from_": None, "until": None, "fine": False}  # flags for recordings only -> their default
_OF_A_LOOK = {"gpu": None, "interval": 0.1, "no_ebpf": False, "sudo": False, "serving": None, "no_serving": False}
"""Flags for this machine only -> their default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="a recording, or files of a rotation; without it this machine for --last (10s)"
    )
    parser.add_argument("--sample", action="store_true", help="the recording that comes with gputop")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON object")
    form.add_argument("--plot", action="store_true", help="GPU utilization over time, with the incidents")
    parser.add_argument("--fail-on", choices=SEVERITIES, metavar="SEVERITY", help="exit 3 for an incident of at least this severity")
    add_span(parser)
    add_sampling(parser)
    parser.set_defaults(host=None)


def run(args: argparse.Namespace) -> int:
    """Print the explanation. Returns 3 where --fail-on is met."""
    if files := _files(args):
        from gputop.stream.explained import explain_files

        found = explain_files(files, span_of(args), args.plot)
    else:
        found = _live(args)
    if args.json:
        import msgspec

        write(msgspec.json.encode(found.explanation) + b"\n")
    else:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH, dated_lines, explain_lines, plot, without_colour

        width = width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)
        onward = _onward(files, found.explanation)
        experiments = dated_lines("experiments", found.experiments, width)
        reports = dated_lines("NCCL's reports on ranks that hung", found.explanation.nccl or (), width)
        dumps = dated_lines("ranks that hung, by torch's flight recorder", found.explanation.flight or (), width)
        show([*explain_lines(found.explanation, found.ongoing, width, found.points, onward), *experiments, *reports, *dumps])
        if found.explanation.traces:
            from gputop.findings.traces import lines

            show([[], *lines(found.explanation.traces, width)])
        if args.plot:
            picture = plot(found.points, found.explanation.incidents, width)
            write(f"{picture if takes_colour(sys.stdout) else without_colour(picture)}\n")
    for line in found.problems:
        notify(line)
    return FAILED_ON if _met(args.fail_on, found.explanation.incidents) else 0


def _onward(files: list[str], found: Explanation) -> list[tuple[str, str]]:
    """What to do next: look at the worst moment of a recording, or try the cause on this machine."""
    worst = max(filter(is_fault, found.incidents), key=lambda one: one.gpu_lost_s, default=None)
    if worst is None:
        return []
    if not files:
        return [("gputop prove", "tries the cause: off and on in turn, all is put back")] if worst.end_unix_s is None else []
    at = time.strftime("%H:%M:%S", time.localtime(worst.start_unix_s))
    name = "--sample" if files == [_sample()] else shlex.join(files[:1])
    export = [] if name == "--sample" else [(f"gputop export {name} --to html -o run.html", "a page to share")]
    return [(f"gputop replay {name} --at {at}", "the screen at that moment"), *export]


def _sample() -> str:
    from gputop.commands.replay import sample

    return sample()


def _files(args: argparse.Namespace) -> list[str]:
    """The files of the recording; empty for this machine. Raises UserError for flags that have no effect."""
    if args.files and args.sample:
        raise UserError("name a FILE or --sample (see gputop explain --help)", code=2)
    idle, when = (_OF_A_LOOK, "without") if args.files or args.sample else (_OF_A_FILE, "with")
    given = [f"--{name.strip('_').replace('_', '-')}" for name, absent in idle.items() if getattr(args, name) != absent]
    if given:
        raise UserError(f"{', '.join(given)}: only {when} a FILE (see gputop explain --help)", code=2)
    if args.sample:
        return [_sample()]
    return list(args.files)


def _live(args: argparse.Namespace) -> ExplainedStretch:
    ask_sudo(args)
    argv = stream_argv(args)
    seconds = LIVE_S if args.last is None else args.last
    if sys.stderr.isatty():
        notify(f"looking for {seconds:g} s …")
    from gputop.stream.explained import explain_now

    return explain_now(argv, seconds, lambda: leave_root(*RECORDER))


def _met(severity: str | None, incidents: Iterable[Episode]) -> bool:
    if severity is None:
        return False
    least = SEVERITIES.index(severity)
    return any(SEVERITIES.index(one.severity) >= least for one in incidents)
