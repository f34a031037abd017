"""A crew: one thread that ticks all quick lanes in turn.

Waking a thread costs more than asking a quick driver: its caches are cold. So lanes whose ticks proved quick share one
thread. Should a tick hang there after all, `Crew.relieve` leaves that thread to the lane that hangs and gives the others a new
one, which makes up for the beat at once.
"""

from __future__ import annotations

from threading import Lock
from threading import Thread

from gputop.sources.nvml.lane import Lane
from gputop.sources.nvml.lane import beats

QUICK_NS = 1_000_000
QUICK_TURNS, QUICK_FOR_NS = 5, 2_000_000_000
"""A lane whose ticks were quick so many times in a row, for so long, is taken over."""
SLOW_NS = 2_000_000
"""One that then takes longer is sent back to a thread of its own."""
HANGS_NS = 5_000_000
PROBATION_NS = 60_000_000_000
"""For so much longer a lane must be quick that once held up the others."""


class Crew:
    """Ticks lanes at the beat of the quickest; the others when they are due, behind them.

    `takes` is called by the lanes' own threads, `relieve` by the collector's, in each of its beats.
    """

    def __init__(self, period_ns: int, stop: Lock) -> None:
        self._period_ns = period_ns
        self._stop = stop
        self._lock = Lock()
        self._members: list[Lane] = []
        self._at_work: Lane | None = None
        self._thread: Thread | None = None
        """Who ticks the members; a thread that is no more this one has been left to the lane it hangs in."""

    def takes(self, lane: Lane) -> bool:
        """Whether ``lane`` has proved quick, and is ticked by the crew from now on."""
        lane.quick_turns = lane.quick_turns + 1 if lane.lasted_ns < QUICK_NS else min(lane.quick_turns, 0)
        if lane.quick_turns < QUICK_TURNS or lane.quick_turns * lane.period_ns < QUICK_FOR_NS:
            return False
        with self._lock:
            self._members = sorted([*self._members, lane], key=_period_ns)
            if self._thread is None:
                self._begin()
        return True

    def relieve(self, now_ns: int) -> None:
        """Where a member hangs, leave our thread to it and go on with another."""
        with self._lock:
            lane = self._at_work
            if lane is None or not lane.began_ns or now_ns - lane.began_ns < HANGS_NS:
                return
            lane.thread = self._thread
            self._dismiss(lane)
            self._begin()

    def join(self, timeout_s: float) -> bool:
        """Whether the crew's thread ended in time."""
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _begin(self) -> None:
        self._at_work = None
        self._thread = thread = Thread(target=lambda: self._run(thread), name="nvml-crew", daemon=True)
        thread.start()

    def _dismiss(self, lane: Lane) -> None:
        lane.quick_turns = -PROBATION_NS // lane.period_ns
        self._members.remove(lane)

    def _run(self, us: Thread) -> None:
        for beat_ns in beats(self._period_ns, 0, self._stop):
            for lane in self._members.copy():
                if lane.is_due(beat_ns) and not self._turn(us, lane, beat_ns):
                    lane.run()
                    return

    def _turn(self, us: Thread, lane: Lane, beat_ns: int) -> bool:
        """Tick a member; False where we were left to it meanwhile."""
        self._at_work = lane
        lane.turn(beat_ns)
        with self._lock:
            if self._thread is not us:
                return False
            self._at_work = None
            if lane.lasted_ns > SLOW_NS:
                self._dismiss(lane)
                lane.start()
        return True


def _period_ns(lane: Lane) -> int:
    return lane.period_ns
