"""Moments of a recording from text, for flags and for the screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from time import localtime, strftime
from typing import TYPE_CHECKING

from msgspec import Struct

from gputop.model.frame import SECOND_NS, Mark
from gputop.sources.marks import MAX_TEXT
from gputop.system.errors import UserError
from gputop.system.text import clean

if TYPE_CHECKING:
    from gputop.recording.reader import Recording

WAYS = "90s or 5m after its start, 14:03:07, 2026-11-20 14:03:07, 50% or a marker's text (text#2: the second such)"
_UNITS_NS = {"": SECOND_NS, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
_AFTER = re.compile(r"\+?(\d{1,12}(?:\.\d*)?|\.\d+)([smh]?)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d*)?)%", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d)(\.\d+)?)?", re.ASCII)
_NTH = re.compile(r"(.+)#(\d{1,9})", re.ASCII | re.DOTALL)
_DAY = timedelta(days=1)
_NAMED, _NAMED_CHARS = 5, 40  # markers that a message names, and characters of each


class Span(Struct, frozen=True):
    """A stretch of a recording as a user asks for it: texts of `moment`, the last seconds, whether every tick is read."""

    start: str | None = None
    end: str | None = None
    last_s: float | None = None
    fine: bool = False

    def of(self, recording: Recording) -> tuple[int, int]:
        """(start_ns, end_ns): ``start_ns`` is inside, ``end_ns`` is not. UserError for an empty stretch."""
        asked_ns = recording.start_ns if self.start is None else moment(self.start, recording)
        start_ns, last_ns = max(recording.start_ns, asked_ns), recording.end_ns
        end_ns = last_ns if self.end is None else moment(self.end, recording, start_ns)
        end_ns += end_ns == last_ns  # up to the last tick includes that tick
        extent = f"this recording goes from {bounds(recording)}"
        if self.start is not None and self.end is not None and end_ns <= asked_ns:
            raise UserError(f"--until {clean(self.end)} is not after --from {clean(self.start)}: {extent}", code=2)
        if self.last_s is not None:
            start_ns = max(start_ns, end_ns - round(self.last_s * 1e9))
        if start_ns >= end_ns or start_ns > last_ns:
            raise UserError(f"nothing was recorded in that stretch: {extent}", code=2)
        return start_ns, end_ns


def moment(text: str, recording: Recording, after_ns: int = 0) -> int:
    """The moment, CLOCK_MONOTONIC ns; it may lie outside the recording. UserError for a text that names none.

    ``90``, ``+90s``, ``5m`` and ``2h`` count from the start; ``50%`` is half way. ``14:03`` and ``14:03:07.5`` are local time: the first
    such time in the recording, else the nearest; ``2026-11-20 14:03:07`` has the day. A marker's text is the first such marker after
    ``after_ns``, else the first of all; ``text#2`` is the second such marker.
    """
    text = text.strip()
    if match := _AFTER.fullmatch(text):
        return recording.start_ns + round(float(match[1]) * _UNITS_NS[match[2]])
    if match := _PERCENT.fullmatch(text):
        return recording.start_ns + round(float(match[1]) / 100 * (recording.end_ns - recording.start_ns))
    if match := _CLOCK.fullmatch(text):
        return _at_clock(match, recording)
    marked = _marked(text, recording.marks, after_ns)
    if marked is None:
        raise _no_time(text, recording.marks)
    return marked


def moment_within(text: str, recording: Recording) -> int:
    """The moment of `moment`; UserError if it lies outside the recording. The whole second in which the recording begins counts as
    inside."""
    t_ns = moment(text, recording)
    if not recording.header.t_ns_of(_first_second_ns(recording)) <= t_ns <= recording.end_ns:
        raise UserError(f"{text.strip()} lies outside the recording ({bounds(recording)})", code=2)
    return max(t_ns, recording.start_ns)


def bounds(recording: Recording) -> str:
    """``2026-11-20 14:03:07 to 2026-11-20 14:13:07``, local time."""
    dates = (localtime(recording.header.unix_ns_of(t_ns) // SECOND_NS) for t_ns in (recording.start_ns, recording.end_ns))
    return " to ".join(strftime("%Y-%m-%d %H:%M:%S", one) for one in dates)


def _at_clock(match: re.Match[str], recording: Recording) -> int:
    began_ns, ended_ns = _first_second_ns(recording), recording.header.unix_ns_of(recording.end_ns)
    today = date.fromtimestamp(began_ns // SECOND_NS)
    try:
        days = [date.fromisoformat(match[1])] if match[1] else [today - _DAY, today, today + _DAY]
        # When clocks are put back, an hour comes twice: fold 0 and 1.
        times = [time(int(match[2]), int(match[3]), int(match[4] or 0), fold=fold) for fold in (0, 1)]
        asked = [round(datetime.combine(day, one).timestamp()) for day in days for one in times]
    except (ValueError, OverflowError, OSError):
        raise _no_time(match[0]) from None
    part_ns = round(float(match[5] or 0) * SECOND_NS)
    asked_ns = (unix_s * SECOND_NS + part_ns for unix_s in asked)
    return recording.header.t_ns_of(min(asked_ns, key=lambda unix_ns: max(began_ns - unix_ns, unix_ns - ended_ns, 0)))


def _first_second_ns(recording: Recording) -> int:
    """Start of the second in which the recording begins: 14:03:07 names a recording that began at 14:03:07.6."""
    return recording.header.unix_ns_of(recording.start_ns) // SECOND_NS * SECOND_NS


def _marked(text: str, marks: Sequence[Mark], after_ns: int) -> int | None:
    """Time of the marker that a text names; None if it names none."""
    if times := _times_of(text, marks):
        return next((t_ns for t_ns in times if t_ns > after_ns), times[0])
    if not (match := _NTH.fullmatch(text)):
        return None
    times, number = _times_of(match[1], marks), int(match[2])
    return times[number - 1] if 0 < number <= len(times) else None


def _times_of(text: str, marks: Sequence[Mark]) -> list[int]:
    said = text.strip()[:MAX_TEXT].strip()
    return [mark.t_ns for mark in marks if mark.text.strip() == said]


def _no_time(text: str, marks: Sequence[Mark] = ()) -> UserError:
    names = list(dict.fromkeys(clean(mark.text.strip(), _NAMED_CHARS) for mark in marks))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    told = f"; its markers: {', '.join(names[:_NAMED])}{more}" if names else ""
    return UserError(f"{clean(text, MAX_TEXT)!r} is no time: write {WAYS}{told}", code=2)
