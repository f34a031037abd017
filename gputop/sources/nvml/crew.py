"""A crew: the quick lanes, ticked in turn on the beat's own thread (see `gputop.collector.relay`).

Should a tick hang there after all, `Crew.relieve` leaves that thread to the lane that hangs; another goes on with the beat. What ails
one GPU often ails the driver, so that all lanes then get threads of their own again, until they have proved quick once more.
"""

from __future__ import annotations

from threading import Lock, Thread, current_thread
from time import monotonic_ns

from gputop.sources.nvml.lane import Lane

QUICK_NS = 1_000_000
QUICK_TURNS = 5
"""A lane whose ticks were quick so many times in a row, and long enough for all its calls to have been made, is taken over."""
SLOW_NS = 2_000_000
"""One that then takes longer is sent back to a thread of its own."""
ALL_NS, ALL_SHARE = 4_000_000, 0.1
"""What all of them may take of a beat to be taken over, and no more than that share of it; twice that to stay."""
HANGS_NS = 5_000_000
PROBATION_NS = 60_000_000_000
"""For so much longer a lane must be quick that once held up the others."""


class Crew:
    """Ticks lanes when they are due, the quickest first. `takes` is called by the lanes' own threads; before the first `turn`, nobody
    having come to tick them, it takes none, nor those whose beats are not among ours."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._most_ns = min(ALL_NS, int(interval_ns * ALL_SHARE))
        self._lock = Lock()
        self._members: list[Lane] = []
        self.at_work: Lane | None = None
        """Who is ticked at the moment."""
        self._thread: Thread | None = None
        """Who ticks the members."""

    def takes(self, lane: Lane) -> bool:
        """Whether ``lane`` has proved quick, and is ticked by the crew from now on."""
        if lane.lasted_ns < QUICK_NS:
            lane.quick_turns += 1
        else:
            lane.quick_turns = _on_probation(lane) if lane.quick_turns < 0 else 0
        if self._thread is None or lane.quick_turns < QUICK_TURNS or lane.quick_turns * lane.period_ns < lane.settles_ns:
            return False
        with self._lock:
            if lane.period_ns % self._interval_ns or sum(one.lasted_ns for one in (*self._members, lane)) > self._most_ns:
                return False
            self._members = sorted([*self._members, lane], key=_period_ns)
        return True

    def turn(self, beat_ns: int) -> bool:
        """Tick the members that are due; False where this thread was left to one of them meanwhile, and has served it since."""
        self._thread = current_thread()
        took_ns, longest = 0, None
        for lane in self._members:
            if due_ns := lane.due(beat_ns, self._interval_ns):
                if not self._tick(lane, due_ns):
                    lane.run()
                    return False
                took_ns += lane.lasted_ns
                longest = lane if longest is None or lane.lasted_ns > longest.lasted_ns else longest
        if longest is not None and took_ns > 2 * self._most_ns:
            self._send_back(longest)
        return True

    def relieve(self) -> bool:
        """Called by another thread: whether a member hangs, whose the thread is from now on."""
        with self._lock:
            lane = self.at_work
            began_ns = lane.began_ns if lane is not None else 0
            if lane is None or not began_ns or monotonic_ns() - began_ns < HANGS_NS:
                return False
            lane.thread, lane.quick_turns = self._thread, _on_probation(lane)
            self.at_work = None
            others, self._members = [one for one in self._members if one is not lane], []
        for other in others:
            other.quick_turns = 0
            self._start(other)
        return True

    def _tick(self, lane: Lane, beat_ns: int) -> bool:
        """False where we were left to it meanwhile."""
        self.at_work = lane
        lane.turn(beat_ns)
        with self._lock:
            if self.at_work is not lane:
                return False
            self.at_work = None
        if lane.lasted_ns > SLOW_NS:
            self._send_back(lane)
        return True

    def _send_back(self, lane: Lane) -> None:
        """To a thread of its own."""
        with self._lock:
            if lane not in self._members:
                return
            self._members = [one for one in self._members if one is not lane]
            lane.quick_turns = _on_probation(lane)
        self._start(lane)

    def _start(self, lane: Lane) -> None:
        """On a thread of its own, or with us where it cannot have one (pids.max, RLIMIT_NPROC): late is better than never."""
        try:
            lane.start()
        except RuntimeError:
            with self._lock:
                self._members = sorted([*self._members, lane], key=_period_ns)


def _on_probation(lane: Lane) -> int:
    return -PROBATION_NS // lane.period_ns


def _period_ns(lane: Lane) -> int:
    return lane.period_ns
