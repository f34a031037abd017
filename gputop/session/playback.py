"""The clock of a replay: position and speed."""

from __future__ import annotations

from msgspec import Struct

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
MOST_BEHIND_NS = 250_000_000  # made up for in one turn; a machine that cannot keep up plays slower, and the screen says so
PACE_OVER_NS = 1_000_000_000  # over which the real speed is measured


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
