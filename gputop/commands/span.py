"""Flags that choose a stretch of a recording."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gputop.commands.options import duration
from gputop.stream.moment import WAYS, bounds, moment
from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

MOMENT = WAYS.replace("%", "%%")  # the ways to name a moment, for the help of a flag, which argparse formats


def add_span(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--last", "--since", type=duration(), metavar="TIME", help="only the last 90s, 10m, 2h")
    parser.add_argument("--from", dest="from_", type=from_shell, metavar="T", help=f"only from here on: {MOMENT}")
    parser.add_argument("--until", type=from_shell, metavar="T", help="only up to here")
    parser.add_argument("--fine", action="store_true", help="read every tick of a stretch over 5 minutes, not seconds")


def span(args: argparse.Namespace, recording: Recording) -> tuple[int, int]:
    """(start_ns, end_ns) that the flags ask for: ``start_ns`` is inside, ``end_ns`` is not. UserError for an empty stretch."""
    asked = recording.start_ns if args.from_ is None else moment(args.from_, recording)
    start, last = max(recording.start_ns, asked), recording.end_ns
    end = last if args.until is None else moment(args.until, recording, start)
    end += end == last  # up to the last tick includes that tick
    if args.from_ is not None and args.until is not None and end <= asked:
        raise UserError(f"--until {clean(args.until)} is not after --from {clean(args.from_)}: {_extent(recording)}", code=2)
    if args.last is not None:
        start = max(start, end - round(args.last * 1e9))
    if start >= end or start > last:
        raise UserError(f"nothing was recorded in that stretch: {_extent(recording)}", code=2)
    return start, end


def read_by(args: argparse.Namespace, recording: Recording, start_ns: int, end_ns: int) -> None:
    """Let the recording be read by the tier that suits the stretch; standard error names the tier if it is not every tick."""
    from gputop.stream.judged import tier_for, tier_words

    recording.tier = tier_for(start_ns, min(end_ns, recording.end_ns), args.fine)
    if words := tier_words(recording, start_ns, end_ns):
        notify(f"{recording.path}: {words}")


def _extent(recording: Recording) -> str:
    return f"this recording goes from {bounds(recording)}"
