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
    parser.add_argument("--from", dest="from_", metavar="T", help="only from here on: seconds since it began, or a clock time HH:MM[:SS]")
    parser.add_argument("--until", metavar="T", help="only up to here")


def span(args: argparse.Namespace, recording: Recording) -> tuple[int, int]:
    """(start_ns, end_ns) of what the flags ask for. UserError where that is no time."""
    start = recording.start_ns if args.from_ is None else moment(args.from_, recording)
    end = recording.end_ns + 1 if args.until is None else moment(args.until, recording)
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


def moment(text: str, recording: Recording) -> int:
    """CLOCK_MONOTONIC ns of ``90``, ``03:12`` or ``03:12:30.5``; a clock time is the first of its kind in the recording."""
    clock = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?", text)
    if clock is None:
        try:
            return recording.start_ns + round(_seconds(text) * 1e9)
        except (ValueError, OverflowError):
            found = next((mark.t_ns for mark in recording.marks if mark.text == text), None)
            if found is not None:
                return found
            raise UserError(f"{text!r} is no time: write seconds since the beginning, HH:MM[:SS], or a marker's text", code=2) from None
    began_s = recording.unix_ns_of(recording.start_ns) / 1e9
    day = time.localtime(began_s)
    midnight = time.mktime((day.tm_year, day.tm_mon, day.tm_mday, 0, 0, 0, 0, 0, -1))
    asked = midnight + int(clock[1]) * 3600 + int(clock[2]) * 60 + float(clock[3] or 0)
    return recording.t_ns_of(round((asked if asked >= began_s - 1 else asked + 86_400) * 1e9))
