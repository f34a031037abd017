"""How a recording is played: at which speed, and where it stands; alone (`gputop.tui.player`) or with others (`gputop.fleet.targets`)."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

from gputop.model.ranges import MOST_UNIX_S, UnixSeconds

_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
MOST_BEHIND_NS = 250_000_000  # ns made up for in one round; a machine that cannot keep up plays slower, and the screen shows it
PACE_OVER_NS = 1_000_000_000  # ns over which the real speed is measured


class Playback(Struct):
    """A position that moves ``speed`` times as fast as the wall clock. One thread calls `due`; any thread may set the fields."""

    position_ns: int
    speed: float = 1.0
    playing: bool = True
    loop: bool = False
    pace: float | None = None  # the speed reached over the last second; None while it is not known
    _turn_ns: int = 0
    _paced_ns: int = 0
    _paced_from_ns: int = 0

    def due(self, wall_ns: int, end_ns: int) -> int:
        """Move to the moment to show at ``wall_ns``, at most ``end_ns``, and return it."""
        passed = min(wall_ns - self._turn_ns, MOST_BEHIND_NS) if self._turn_ns else 0
        self._turn_ns = wall_ns if self.playing else 0
        if self.playing:
            self.position_ns = max(self.position_ns, min(self.position_ns + int(passed * self.speed), end_ns))
        self._measure(wall_ns)
        return self.position_ns

    def jump(self, t_ns: int) -> None:
        """Move to another moment and go on from there."""
        self.position_ns = t_ns
        self._turn_ns = self._paced_ns = 0
        self.pace = None

    def step_speed(self, steps: int) -> None:
        """Take the next faster (positive) or slower speed of `SPEEDS`."""
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


class PlayedClock(Struct, frozen=True):
    """The time on recorded clocks while they are played: from the moment ``wall_s`` of this machine's wall clock on it runs ``speed``
    times as fast as that."""

    wall_s: UnixSeconds
    unix_s: UnixSeconds  # recorded time at `wall_s` and before
    speed: Annotated[float, Meta(ge=0.0, le=SPEEDS[-1])] = 1.0  # 0: it stands

    def at(self, wall_s: float) -> float:
        """The time on the recorded clocks (Unix seconds) at a moment of ours."""
        return self.unix_s + self.speed * max(0.0, wall_s - self.wall_s)

    def wait_s(self, unix_s: float, wall_s: float) -> float | None:
        """Seconds from a moment of our clock until it is ``unix_s`` on the recorded ones, not above 0 if it is past; None: never, it stands
        before."""
        if unix_s <= self.unix_s:
            return 0.0
        return self.wall_s + (unix_s - self.unix_s) / self.speed - wall_s if self.speed else None

    @property
    def text(self) -> str:
        """``WALL,UNIX,SPEED``, for a command line."""
        return f"{self.wall_s!r},{self.unix_s!r},{self.speed!r}"


def read_clock(text: str) -> PlayedClock:
    """Read `PlayedClock.text`. ValueError for another text."""
    parts = text.split(",")
    if len(parts) != 3 or not all(_NUMBER.fullmatch(part) for part in parts):
        raise ValueError(f"{text!r} is no clock: write WALL,UNIX,SPEED")
    wall_s, unix_s, speed = map(float, parts)
    if not (wall_s < MOST_UNIX_S and unix_s < MOST_UNIX_S and speed <= SPEEDS[-1]):
        raise ValueError(f"{text!r} is no clock of this century, or runs too fast")
    return PlayedClock(wall_s, unix_s, speed)
