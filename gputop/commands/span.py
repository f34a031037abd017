"""Flags that choose a stretch of a recording."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gputop.commands.options import duration
from gputop.stream.moment import WAYS, Span
from gputop.system.console import notify
from gputop.system.text import from_shell

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

MOMENT = WAYS.replace("%", "%%")  # the ways to name a moment, for the help of a flag, which argparse formats


def add_span(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--last", "--since", type=duration(), metavar="TIME", help="only the last 90s, 10m, 2h")
    parser.add_argument("--from", dest="from_", type=from_shell, metavar="T", help=f"only from here on: {MOMENT}")
    parser.add_argument("--until", type=from_shell, metavar="T", help="only up to here")
    parser.add_argument("--fine", action="store_true", help="read every tick of a stretch over 5 minutes, not seconds")


def span_of(args: argparse.Namespace) -> Span:
    """The stretch that the flags ask for."""
    return Span(args.from_, args.until, args.last, args.fine)


def stretch_of(args: argparse.Namespace, recording: Recording) -> tuple[int, int]:
    """(start_ns, end_ns) of the stretch that the flags ask for, which the recording reads by the tier that suits it.

    Standard error names the tier if it is not every tick. UserError for an empty stretch.
    """
    from gputop.stream.judged import tier_for, tier_words

    start_ns, end_ns = span_of(args).of(recording)
    recording.tier = tier_for(start_ns, min(end_ns, recording.end_ns), args.fine)
    if words := tier_words(recording, start_ns, end_ns):
        notify(f"{recording.path}: {words}")
    return start_ns, end_ns
