"""The clock of a replay: where it stands, how fast it runs, and which moment of the recording a text means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from time import localtime
from time import mktime
from time import strftime
from time import strptime

from msgspec import Struct

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
MOST_BEHIND_NS = 250_000_000
"""What a turn may make up for. A machine that cannot keep up plays slower than asked, and says so, instead of ever later."""
PACE_OVER_NS = 1_000_000_000
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_CLOCK = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d)(\.\d+)?)?")
_OFFSET = re.compile(r"\+(\d+(?:\.\d+)?)([smh]?)")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")
_DAY_S = 86_400.0


class Playback(Struct):
    """A position that moves with the wall clock, ``speed`` times as fast. One thread asks `due`; any may set the switches."""

    position_ns: int
    speed: float = 1.0
    playing: bool = True
    loop: bool = False
    pace: float | None = None
    """The speed really reached over the last second; None while that is not known."""
    _turn_ns: int = 0
    _paced_ns: int = 0
    _paced_from_ns: int = 0

    def due(self, wall_ns: int, end_ns: int) -> int:
        """The moment to be shown at ``wall_ns``, which becomes the position; never behind ``end_ns``."""
        passed = min(wall_ns - self._turn_ns, MOST_BEHIND_NS) if self._turn_ns else 0
        self._turn_ns = wall_ns if self.playing else 0
        if self.playing:
            self.position_ns = max(self.position_ns, min(self.position_ns + int(passed * self.speed), end_ns))
        self._measure(wall_ns)
        return self.position_ns

    def jump(self, t_ns: int) -> None:
        """Stand elsewhere; time goes on from there."""
        self.position_ns = t_ns
        self._turn_ns = self._paced_ns = 0
        self.pace = None

    def step_speed(self, steps: int) -> None:
        """The next faster (positive) or slower speed of `SPEEDS`."""
        if steps > 0:
            self.speed = next((speed for speed in SPEEDS if speed > self.speed), SPEEDS[-1])
        else:
            self.speed = next((speed for speed in reversed(SPEEDS) if speed < self.speed), SPEEDS[0])

    def _measure(self, wall_ns: int) -> None:
        if not self.playing or not self._paced_ns:
            self._paced_ns, self._paced_from_ns = (wall_ns if self.playing else 0), self.position_ns
            self.pace = None
        elif wall_ns - self._paced_ns >= PACE_OVER_NS:
            self.pace = (self.position_ns - self._paced_from_ns) / (wall_ns - self._paced_ns)
            self._paced_ns, self._paced_from_ns = wall_ns, self.position_ns


def moment(text: str, start_unix_s: float, end_unix_s: float, marks: Iterable[tuple[str, float]] = ()) -> float:
    """The Unix time within a recording that a text means.

    ``14:03`` and ``14:03:07`` (the first such time of day, local, from the start on), ``2026-11-20 14:03:07``,
    ``+90``, ``+90s``, ``+5m``, ``+2h`` (after the start), ``50%`` (of the way), or the first of ``marks`` (text, Unix time) that has
    this text. ValueError, in a line, for what is none of these or lies outside.
    """
    text = text.strip()
    if match := _OFFSET.fullmatch(text):
        unix_s = start_unix_s + float(match[1]) * _UNITS_S[match[2]]
    elif match := _PERCENT.fullmatch(text):
        unix_s = start_unix_s + float(match[1]) / 100 * (end_unix_s - start_unix_s)
    elif match := _CLOCK.fullmatch(text):
        unix_s = _clock(match, start_unix_s)
    elif marked := [at for marker, at in marks if marker == text]:
        unix_s = marked[0]
    else:
        raise ValueError("write a time as 14:03:07, 2026-11-20 14:03:07, +90s, +5m or 50%, or a marker's text")
    if not int(start_unix_s) <= unix_s <= end_unix_s:
        held = " to ".join(strftime("%Y-%m-%d %H:%M:%S", localtime(at)) for at in (start_unix_s, end_unix_s))
        raise ValueError(f"{text} lies outside the recording ({held})")
    return max(unix_s, start_unix_s)


def _clock(match: re.Match[str], start_unix_s: float) -> float:
    day = match[1] or strftime("%Y-%m-%d", localtime(start_unix_s))
    try:
        unix_s = mktime(strptime(f"{day} {match[2]}:{match[3]}:{match[4] or '00'}", "%Y-%m-%d %H:%M:%S")) + float(match[5] or 0)
    except (ValueError, OverflowError):
        raise ValueError(f"{match[0]} is no time of day") from None
    # A recording made over midnight: 00:30 is on its second day.
    return unix_s if match[1] or unix_s >= int(start_unix_s) else unix_s + _DAY_S
