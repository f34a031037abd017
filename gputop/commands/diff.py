"""Compare two recordings, before and after a fix: lost GPU time per cause, step rate, incidents."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gputop.commands.span import add_span, span_of
from gputop.findings.explanation import SCHEMA, Diff, Experiments
from gputop.system.colour import width_of
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from gputop.stream.explained import ExplainedStretch
    from gputop.stream.moment import Span

EXAMPLES = """examples:
  gputop diff before.gputop after.gputop
  gputop diff before.gputop after.gputop --from 60    without the first minute of both
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", metavar="A", help="the recording before")
    parser.add_argument("after", metavar="B", help="the recording after")
    parser.add_argument("--json", action="store_true", help="one JSON object with both explanations")
    add_span(parser)


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and problems of the recordings on standard error."""
    span = span_of(args)
    before, after = _explained(args.before, span), _explained(args.after, span)
    if args.json:
        import msgspec

        tried = Experiments(before.experiments, after.experiments)
        write(msgspec.json.encode(Diff(SCHEMA, before.explanation, after.explanation, tried)) + b"\n")
    else:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH, dated_lines, diff_lines

        width = width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)
        show(diff_lines((args.before, args.after), before.explanation, after.explanation, width))
        for name, found in ((args.before, before), (args.after, after)):
            show(dated_lines(f"experiments in {name}", found.experiments, width))
    for path, found in ((args.before, before), (args.after, after)):
        for problem in found.problems:
            notify(f"{path}: {problem}")
    return 0


def _explained(path: str, span: Span) -> ExplainedStretch:
    from gputop.stream.explained import explain_files

    try:
        return explain_files([path], span)
    except UserError as error:
        raise UserError(str(error) if path in str(error) else f"{path}: {error}", code=error.code) from None
