"""Compare recordings, before and after a change: lost GPU time per cause, step rate, incidents.

With several runs of a side, or with --fail-if-slower: how much longer a step takes, with an interval, by cause, the machine's noise apart.
Exit codes then: 0 not slower, 1 slower, 2 wrong usage, 4 undecided, for the reason that is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, TypeVar

from gputop.commands.span import add_span, span_of
from gputop.findings.explanation import SCHEMA, Diff, Experiments
from gputop.system import crash
from gputop.system.colour import width_of
from gputop.system.console import notify, show, write
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gputop.findings.compared import MeasuredRun, Slower
    from gputop.stream.explained import ExplainedStretch
    from gputop.stream.moment import Span

EXAMPLES = """examples:
  gputop diff before.gputop after.gputop
  gputop diff before.gputop after.gputop --from 60    without the first minute of both
  gputop diff --fail-if-slower 5% before.gputop after.gputop    for CI: exit code 1
  gputop diff --fail-if-slower 5% a1.gputop a2.gputop a3.gputop -- b1.gputop b2.gputop b3.gputop
"""
IS_SLOWER = 1  # exit code
IS_UNDECIDED = 4  # exit code
_T = TypeVar("_T")
MOST_PCT = 1000.0  # per cent by which a step may become longer: more is a slip of the pen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="A B", help="the recordings before and after; several runs a side with -- between them: A1 A2 -- B1 B2"
    )
    parser.add_argument(
        "--fail-if-slower", type=_percent, metavar="PCT", help="exit 1 if a step takes longer by more than this, 4 where that is undecided"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object: both explanations, or the comparison of the runs")
    add_span(parser)
    parser.set_defaults(script_args=[])


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= MOST_PCT:
        raise argparse.ArgumentTypeError(f"{text!r} is no share from 0% to {MOST_PCT:g}%: write 5%")
    return value


def run(args: argparse.Namespace) -> int:
    """Print the comparison, and problems of the recordings on standard error."""
    before, after = _sides(args)
    span = span_of(args)
    if args.fail_if_slower is None and len(before) == len(after) == 1:
        return _side_by_side(before[0], after[0], span, args.json)
    try:
        answer, problems = _compared(before, after, span, args.fail_if_slower)
    except UserError as error:
        raise UserError(str(error), code=error.code if error.code != 1 or args.fail_if_slower is None else IS_UNDECIDED) from None
    except Exception as error:
        if args.fail_if_slower is None:
            raise
        raise UserError(crash.log(error), code=IS_UNDECIDED) from None  # a bug says nothing of the runs
    return _print(answer, problems, args.json)


def _sides(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The files of each side. Raises UserError where that is not clear."""
    if args.script_args:
        if wrong := [word for word in args.script_args if word.startswith("-") and not os.path.exists(word)]:
            raise UserError(f"options stand before --, behind which all words are recordings: {wrong[0]}", code=2)
        return args.files, args.script_args
    if len(args.files) != 2:
        raise UserError("name two recordings, or several runs with -- between before and after (see gputop diff --help)", code=2)
    return args.files[:1], args.files[1:]


def _compared(before: Sequence[str], after: Sequence[str], span: Span, limit_pct: float | None) -> tuple[Slower, list[str]]:
    """The comparison of all runs, and problems of the recordings."""
    from gputop.findings.compared import compared
    from gputop.stream.paces import measured

    sides: tuple[list[MeasuredRun], list[MeasuredRun]] = [], []
    problems: list[str] = []
    for runs, paths in zip(sides, (before, after), strict=True):
        for path in paths:
            found, wrong = _of(path, lambda path: measured(path, span))
            runs.append(found)
            problems += [f"{path}: {problem}" for problem in wrong]
    return compared(*sides, limit_pct), problems


def _print(answer: Slower, problems: Sequence[str], as_json: bool) -> int:
    """Print a comparison; the exit code."""
    from gputop.findings.compared import SLOWER, UNDECIDED

    if as_json:
        import msgspec

        write(msgspec.json.encode(answer) + b"\n")
    else:
        from gputop.findings.compared_text import slower_lines
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH

        show(slower_lines(answer, width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)))
    for problem in problems:
        notify(problem)
    return {SLOWER: IS_SLOWER, UNDECIDED: IS_UNDECIDED}.get(answer.answer or "", 0)


def _side_by_side(before_path: str, after_path: str, span: Span, as_json: bool) -> int:
    before, after = (_of(path, lambda path: _explained(path, span)) for path in (before_path, after_path))
    if as_json:
        import msgspec

        tried = Experiments(before.experiments, after.experiments)
        write(msgspec.json.encode(Diff(SCHEMA, before.explanation, after.explanation, tried)) + b"\n")
    else:
        from gputop.findings.text import LEAST_WIDTH, MOST_WIDTH, WIDTH, dated_lines, diff_lines

        width = width_of(sys.stdout, LEAST_WIDTH, MOST_WIDTH, WIDTH)
        show(diff_lines((before_path, after_path), before.explanation, after.explanation, width))
        for name, found in ((before_path, before), (after_path, after)):
            show(dated_lines(f"experiments in {name}", found.experiments, width))
    for path, found in ((before_path, before), (after_path, after)):
        for problem in found.problems:
            notify(f"{path}: {problem}")
    return 0


def _explained(path: str, span: Span) -> ExplainedStretch:
    from gputop.stream.explained import explain_files

    return explain_files([path], span)


def _of(path: str, read: Callable[[str], _T]) -> _T:
    """Read a file; an error names it."""
    try:
        return read(path)
    except UserError as error:
        raise UserError(str(error) if path in str(error) else f"{path}: {error}", code=error.code) from None
