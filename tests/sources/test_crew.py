"""Quick lanes are ticked on the beat's thread; one that hangs or turns slow holds nobody up for longer than a beat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event, Lock, Thread

import pytest

from gputop.collector.relay import Relay
from gputop.sources.nvml import crew as crews
from gputop.sources.nvml.crew import Crew
from gputop.sources.nvml.lane import SETTLES_NS, Lane, beats

PERIOD_NS = 10_000_000


class Rig:
    """Three lanes, their crew and its beat; ``ran`` tells on which threads each ticked."""

    def __init__(self, settles_ns: int = SETTLES_NS) -> None:
        self.stop = Lock()
        self.stop.acquire()
        self.crew = Crew(PERIOD_NS)
        self.ran: dict[int, list[int]] = {0: [], 1: [], 2: []}
        self.hold = {number: Event() for number in self.ran}
        for event in self.hold.values():
            event.set()
        self.lanes = [Lane(f"lane-{number}", PERIOD_NS, 0, self._tick(number), self.stop, self.crew, settles_ns) for number in self.ran]
        for lane in self.lanes:
            lane.start()
        relay = Relay(beats(PERIOD_NS, 0, self.stop), lambda: self.crew)
        self.beat = Thread(target=relay.run, daemon=True)

    def _tick(self, number: int) -> Callable[[int], None]:
        def tick(_beat_ns: int) -> None:
            self.ran[number].append(threading.get_ident())
            self.hold[number].wait(20)

        return tick

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, self.ran
            time.sleep(0.001)

    def shared(self) -> bool:
        """All three ticked last on one thread."""
        return all(self.ran.values()) and len({threads[-1] for threads in self.ran.values()}) == 1

    def grows(self, *numbers: int) -> Callable[[], bool]:
        """Whether these have ticked three times more than now."""
        before = {number: len(self.ran[number]) for number in numbers}
        return lambda: all(len(self.ran[number]) >= before[number] + 3 for number in numbers)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    # A busy machine must not make a tick pass for slow here: that is decided by `hold` alone.
    monkeypatch.setattr(crews, "QUICK_NS", 10**10)
    monkeypatch.setattr(crews, "SLOW_NS", 10**10)
    monkeypatch.setattr(crews, "HANGS_NS", 200_000_000)
    monkeypatch.setattr(crews, "ALL_SHARE", 10**6)
    monkeypatch.setattr(crews, "ALL_NS", 10**11)
    rig = Rig()
    rig.beat.start()
    yield rig
    for event in rig.hold.values():
        event.set()
    rig.stop.release()
    rig.beat.join(10)
    assert not rig.beat.is_alive()
    assert all(lane.join(10) for lane in rig.lanes)


def test_quick_lanes_come_to_share_the_beats_thread(rig: Rig) -> None:
    assert len({threads[0] for threads in rig.ran.values() if threads}) > 1
    rig.until(rig.shared)
    rig.until(rig.grows(0, 1, 2))


def test_a_lane_that_hangs_keeps_the_thread_and_the_others_get_another(rig: Rig) -> None:
    rig.until(rig.shared)
    old = rig.ran[1][-1]
    rig.hold[1].clear()
    rig.until(lambda: bool(rig.lanes[1].began_ns))
    rig.until(rig.grows(0, 2))
    assert old not in (rig.ran[0][-1], rig.ran[2][-1])
    rig.until(lambda: rig.ran[0][-1] == rig.ran[2][-1])
    rig.hold[1].set()
    rig.until(rig.grows(1))
    assert rig.ran[1][-1] == old, "it goes on where it hung, by itself"


def test_a_lane_that_turns_slow_gets_a_thread_of_its_own_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.until(rig.shared)
    crew_thread = rig.ran[0][-1]
    monkeypatch.setattr(crews, "SLOW_NS", 50_000_000)
    rig.hold[2].clear()
    rig.until(lambda: rig.lanes[2].began_ns > 0 and time.monotonic_ns() - rig.lanes[2].began_ns > 60_000_000)
    rig.hold[2].set()
    rig.until(lambda: rig.ran[2][-1] != crew_thread)
    rig.until(rig.grows(0, 1, 2))


def test_without_a_beat_lanes_keep_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "QUICK_NS", 10**10)
    rig = Rig(settles_ns=0)
    rig.until(rig.grows(0, 1, 2))
    rig.until(rig.grows(0, 1, 2))
    assert [len(set(threads)) for threads in rig.ran.values()] == [1, 1, 1]
    assert not rig.shared()
    for event in rig.hold.values():
        event.set()
    rig.stop.release()
    assert all(lane.join(10) for lane in rig.lanes)


def lane_of(crew: Crew | None = None, period_ns: int = PERIOD_NS, phase_ns: int = 0, lasted_ns: int = 1000) -> Lane:
    """One that has proved quick, but for its next tick."""
    lane = Lane("lane", period_ns, phase_ns, lambda _beat_ns: None, Lock(), crew, 0)
    lane.lasted_ns, lane.quick_turns = lasted_ns, crews.QUICK_TURNS
    return lane


def ticked(lane: Lane, start_ns: int, end_ns: int) -> list[int]:
    """The lane's own beats that are ticked at somebody's tenths of a second."""
    dues = (lane.due(beat_ns, 100_000_000) for beat_ns in range(start_ns, end_ns, 100_000_000))
    return [due_ns for due_ns in dues if due_ns and not lane.turn(due_ns)]


def test_the_crew_takes_none_whose_beats_are_not_among_its_own() -> None:
    crew = Crew(300_000_000)
    crew.turn(0)
    assert crew.takes(lane_of(period_ns=300_000_000))
    assert crew.takes(lane_of(period_ns=3_000_000_000))
    assert not crew.takes(lane_of(period_ns=1_000_000_000))
    assert not crew.takes(lane_of(period_ns=100_000_000))


def test_the_crew_takes_no_more_than_a_part_of_its_beat() -> None:
    crew = Crew(20_000_000)
    crew.turn(0)
    assert [crew.takes(lane_of(period_ns=20_000_000, lasted_ns=700_000)) for _ in range(4)] == [True, True, False, False]


def test_a_slow_tick_begins_probation_anew() -> None:
    crew = Crew(PERIOD_NS)
    crew.turn(0)
    lane = lane_of(lasted_ns=crews.QUICK_NS)
    lane.quick_turns = -3
    assert not crew.takes(lane)
    assert lane.quick_turns == -crews.PROBATION_NS // PERIOD_NS


@pytest.mark.parametrize("phase_ns", [0, 600_000, 4_200_000])
def test_a_lane_that_is_taken_over_misses_no_beat(phase_ns: int) -> None:
    lane = lane_of(period_ns=100_000_000, phase_ns=phase_ns)
    lane.done_ns = 500_000_000 + phase_ns
    assert ticked(lane, 500_000_000, 900_000_000) == [beat + phase_ns for beat in (600_000_000, 700_000_000, 800_000_000)]


@pytest.mark.parametrize("phase_ns", [50_000_000, 450_000_000, 950_000_000])
def test_seldom_lanes_tick_in_the_same_beats(phase_ns: int) -> None:
    lane = lane_of(period_ns=1_000_000_000, phase_ns=phase_ns)
    lane.done_ns = phase_ns
    found = ticked(lane, 0, 4_000_000_000)
    assert found[-2:] == [2_550_000_000, 3_550_000_000]
    assert max(later - earlier for earlier, later in pairwise([phase_ns, *found])) <= 1_000_000_000


def test_where_no_thread_can_be_had_a_slow_lane_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    crew = Crew(PERIOD_NS)
    crew.turn(0)
    lane = lane_of(crew)
    assert crew.takes(lane)
    monkeypatch.setattr(crews, "SLOW_NS", -1)
    monkeypatch.setattr(Thread, "start", _refused)
    for beat in (1, 2, 3):
        assert crew.turn(beat * PERIOD_NS)
        assert lane.done_ns == beat * PERIOD_NS, crew.at_work
    assert lane.join(0.0)


def _refused(_thread: Thread) -> None:
    raise RuntimeError("can't start new thread")
