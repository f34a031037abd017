"""A crew: the quick lanes, ticked in turn on the beat's own thread (see `gputop.relay`).

Should a tick hang there after all, `Crew.relieve` leaves that thread to the lane that hangs; another goes on with the others.
"""

from __future__ import annotations

from threading import Lock
from threading import Thread
from threading import current_thread
from time import monotonic_ns

from gputop.sources.nvml.lane import Lane

QUICK_NS = 1_000_000
QUICK_TURNS, QUICK_FOR_NS = 5, 2_000_000_000
"""A lane whose ticks were quick so many times in a row, for so long, is taken over."""
SLOW_NS = 2_000_000
"""One that then takes longer is sent back to a thread of its own."""
HANGS_NS = 5_000_000
PROBATION_NS = 60_000_000_000
"""For so much longer a lane must be quick that once held up the others."""


class Crew:
    """Ticks lanes when they are due, the quickest first. `takes` is called by the lanes' own threads; before the first `turn`, nobody
    having come to tick them, it takes none."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._members: list[Lane] = []
        self.at_work: Lane | None = None
        """Who is ticked at the moment."""
        self._thread: Thread | None = None
        """Who ticks the members."""

    def takes(self, lane: Lane) -> bool:
        """Whether ``lane`` has proved quick, and is ticked by the crew from now on."""
        lane.quick_turns = lane.quick_turns + 1 if lane.lasted_ns < QUICK_NS else min(lane.quick_turns, 0)
        if self._thread is None or lane.quick_turns < QUICK_TURNS or lane.quick_turns * lane.period_ns < QUICK_FOR_NS:
            return False
        with self._lock:
            self._members = sorted([*self._members, lane], key=_period_ns)
        return True

    def turn(self, beat_ns: int) -> bool:
        """Tick the members that are due; False where this thread was left to one of them meanwhile, and has served it since."""
        self._thread = current_thread()
        for lane in self._members.copy():
            if lane.is_due(beat_ns) and not self._tick(lane, beat_ns):
                lane.run()
                return False
        return True

    def relieve(self) -> bool:
        """Called by another thread: whether a member hangs, whose the thread is from now on."""
        with self._lock:
            lane = self.at_work
            if lane is None or not lane.began_ns or monotonic_ns() - lane.began_ns < HANGS_NS:
                return False
            lane.thread = self._thread
            self.at_work = None
            self._dismiss(lane)
        return True

    def _dismiss(self, lane: Lane) -> None:
        lane.quick_turns = -PROBATION_NS // lane.period_ns
        self._members.remove(lane)

    def _tick(self, lane: Lane, beat_ns: int) -> bool:
        """False where we were left to it meanwhile."""
        self.at_work = lane
        lane.turn(beat_ns)
        with self._lock:
            if self.at_work is not lane:
                return False
            self.at_work = None
            if lane.lasted_ns > SLOW_NS:
                self._dismiss(lane)
                lane.start()
        return True


def _period_ns(lane: Lane) -> int:
    return lane.period_ns
