"""Flags that choose a stretch of a recording, and what they mean."""

from __future__ import annotations

import argparse
import re
import time
from typing import TYPE_CHECKING

from gputop.commands.options import duration
from gputop.errors import UserError

if TYPE_CHECKING:
    from gputop.recording.reader import Recording


def add_span(parser: argparse.ArgumentParser) -> None:
    """Which part of the recording."""
    parser.add_argument("--last", type=duration(), metavar="TIME", help="only the last 90s, 10m, 2h")
    parser.add_argument(
        "--from", dest="from_", metavar="T", help="only from here on: seconds since it began, a clock time HH:MM[:SS], or a marker's text"
    )
    parser.add_argument("--until", metavar="T", help="only up to here")


def span(args: argparse.Namespace, recording: Recording) -> tuple[int, int]:
    """(start_ns, end_ns) of what the flags ask for. UserError where that is no time."""
    start = recording.start_ns if args.from_ is None else max(recording.start_ns, moment(args.from_, recording))
    end = recording.end_ns + 1 if args.until is None else moment(args.until, recording, start)
    if args.last is not None:
        start = max(start, end - round(args.last * 1e9))
    if start >= end or start > recording.end_ns:
        first, last = _clock(recording.start_ns, recording), _clock(recording.end_ns, recording)
        raise UserError(f"nothing was recorded in that stretch: this recording goes from {first} to {last}", code=2)
    return start, end


def _clock(t_ns: int, recording: Recording) -> str:
    return time.strftime("%H:%M:%S", time.localtime(recording.unix_ns_of(t_ns) / 1e9))


def _seconds(text: str) -> float:
    """ValueError where it is no number from 0 on."""
    seconds = float(text)
    if seconds < 0:
        raise ValueError(text)
    return seconds


def moment(text: str, recording: Recording, after_ns: int = 0) -> int:
    """CLOCK_MONOTONIC ns of ``90``, ``03:12``, ``03:12:30.5`` or a marker's text.

    A clock time is the first of its kind in the recording, or the one that is nearest to it; a marker the first behind ``after_ns``.
    """
    clock = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?", text)
    if clock is None:
        try:
            return recording.start_ns + round(_seconds(text) * 1e9)
        except (ValueError, OverflowError):
            marked = [mark.t_ns for mark in recording.marks if mark.text == text]
            if marked:
                return next((t_ns for t_ns in marked if t_ns > after_ns), marked[0])
            raise UserError(f"{text!r} is no time: write seconds since the beginning, HH:MM[:SS], or a marker's text", code=2) from None
    began_s, ended_s = (recording.unix_ns_of(t_ns) / 1e9 for t_ns in (recording.start_ns, recording.end_ns))
    day = time.localtime(began_s)
    of_day_s = int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3] or 0)
    asked = (time.mktime((day.tm_year, day.tm_mon, day.tm_mday + more, 0, 0, 0, 0, 0, -1)) + of_day_s for more in (-1, 0, 1))
    return recording.t_ns_of(round(min(asked, key=lambda unix_s: max(int(began_s) - unix_s, unix_s - ended_s, 0)) * 1e9))
