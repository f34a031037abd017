"""The relay of the beat: who waits, who goes on when a call hangs, and how it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from gputop.collector import relay as module
from gputop.collector.relay import Relay
from gputop.sources import Relieved
from tests.wait import PATIENCE_S, until

PATIENCE_NS = 5_000_000


class Beat:
    """A beat that makes calls under watch. Those in ``hanging`` last until `answer`; the others return at once."""

    def __init__(self, calls: int, hanging: tuple[int, ...] = ()) -> None:
        self.calls, self.hanging = calls, hanging
        self.made: list[tuple[int, int]] = []  # (number of the call, thread)
        self.left: list[int] = []  # threads that were relieved
        self.answer = threading.Event()
        self.under_way = 0  # thread that is in a call, 0 for none
        self.relieved: set[int] = set()
        self.relay = Relay(self.relieve)

    def relieve(self) -> bool:
        if not self.under_way:
            return False
        self.relieved.add(self.under_way)
        self.under_way = 0
        return True

    def beat(self) -> None:
        while len(self.made) < self.calls:
            self.relay.watch(PATIENCE_NS)
            self.call()
            self.relay.unwatch()

    def call(self) -> None:
        me, number = threading.get_ident(), len(self.made)
        self.made.append((number, me))
        if number in self.hanging:
            self.under_way = me
            assert self.answer.wait(PATIENCE_S)
        if me in self.relieved:
            self.left.append(me)
            raise Relieved

    @property
    def threads(self) -> list[int]:
        return [thread for _, thread in self.made]


def standing_by() -> int:
    return sum(thread.name == "standby" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    before = {*threading.enumerate()}  # a test of another module may have left one in a call that hangs
    yield
    until(lambda: not [one for one in threading.enumerate() if one.name in ("beat", "standby") and one not in before])


def test_calls_that_return_are_all_made_by_one_thread_and_nobody_else_wakes():
    beat, looks = Beat(200), list[int]()
    beat.relay = Relay(lambda: bool(looks.append(1)))
    beat.relay.run(beat.beat)
    assert len(set(beat.threads)) == 1
    assert beat.threads[0] != threading.get_ident()
    assert len(looks) < 20, "only where this machine stopped a call for its patience"


def test_a_call_that_hangs_is_left_to_its_thread_and_another_goes_on():
    beat = Beat(50, hanging=(10,))
    beat.relay.run(beat.beat)
    assert [number for number, _ in beat.made] == list(range(50))
    assert len(set(beat.threads[:11])) == len(set(beat.threads[11:])) == 1
    assert beat.threads[10] != beat.threads[11]
    assert beat.left == []
    beat.answer.set()
    until(lambda: beat.left == [beat.threads[10]])
    assert len(beat.made) == 50, "who was relieved does nothing of the beat"


def test_each_of_many_calls_that_hang_has_a_thread_of_its_own():
    beat = Beat(12, hanging=(3, 4, 5, 9))
    beat.relay.run(beat.beat)
    assert len(set(beat.threads)) == 5
    beat.answer.set()
    until(lambda: len(beat.left) == 4)


@pytest.mark.parametrize("hanging", [(), (1,)])
def test_what_the_beat_raises_is_raised_by_run(hanging: tuple[int, ...]):
    beat = Beat(5, hanging=hanging)

    def fail() -> None:
        beat.beat()
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        beat.relay.run(fail)
    beat.answer.set()


def test_without_a_thread_for_standing_by_the_beat_goes_on_and_later_has_one(monkeypatch: pytest.MonkeyPatch):
    starts: list[str] = []

    def start(work: Callable[..., object], name: str, *arguments: object) -> threading.Thread | None:
        starts.append(name)
        if starts.count("standby") < 4 and name == "standby":
            return None
        thread = threading.Thread(target=work, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    monkeypatch.setattr(module, "start_thread", start)
    before = len(os.listdir("/proc/self/fd"))
    beat = Beat(10, hanging=(6,))
    beat.relay.run(beat.beat)
    assert len(beat.made) == 10
    assert starts.count("standby") >= 4
    beat.answer.set()
    until(lambda: not standing_by() and len(os.listdir("/proc/self/fd")) <= before)


def test_without_any_thread_the_caller_has_the_beat(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "start_thread", lambda *_: None)
    beat = Beat(3)
    beat.relay.run(beat.beat)
    assert set(beat.threads) == {threading.get_ident()}


def test_a_signal_is_taken_while_a_call_hangs_that_nobody_relieves():
    beat = Beat(2, hanging=(1,))
    beat.relay = Relay(lambda: False)
    before = signal.signal(signal.SIGUSR1, lambda *_: beat.answer.set())
    sender = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        began = time.monotonic()
        beat.relay.run(beat.beat)
        assert time.monotonic() - began < PATIENCE_S
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
