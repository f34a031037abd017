"""The beat's thread is left to what hangs on it; another goes on at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from threading import Event

import pytest

from gputop.collector.relay import Alarm, Relay


class Job:
    """Turns of which the one of beat ``hangs`` waits for ``go`` before it lets go of its thread."""

    def __init__(self, hangs: int = -1) -> None:
        self.hangs = hangs
        self.go = Event()
        self.made: list[int] = []
        self.threads: list[int] = []
        self.left_behind = Event()
        self.relieved = False

    def turn(self, beat_ns: int) -> bool:
        self.threads.append(threading.get_ident())
        if beat_ns != self.hangs or self.relieved:
            self.made.append(beat_ns)
            return True
        assert self.go.wait(20)
        self.left_behind.set()
        return False

    def relieve(self) -> bool:
        self.relieved = True
        return True


def test_the_beat_goes_on_while_a_turn_hangs():
    job, told = Job(hangs=3), []

    def beats() -> Iterator[int]:
        for beat in range(1, 7):
            yield beat
            told.append(beat)

    Relay(beats(), lambda: job).run()
    assert told == [1, 2, 3, 4, 5, 6]
    assert job.made == [1, 2, 3, 4, 5, 6], "what hung is not waited for, the rest of its beat is made"
    first, second = dict.fromkeys(job.threads)
    assert job.threads == [first] * 3 + [second] * 4
    assert threading.get_ident() not in job.threads
    assert not job.left_behind.is_set()
    job.go.set()
    assert job.left_behind.wait(20)


def test_without_turns_no_thread_is_started():
    on: list[int] = []

    def beats() -> Iterator[int]:
        for beat in range(3):
            on.append(threading.get_ident())
            yield beat

    Relay(beats(), lambda: None).run()
    assert on == [threading.get_ident()] * 3


@pytest.mark.parametrize("job", [None, Job()])
def test_what_a_beat_raises_is_raised_where_it_is_awaited(job: Job | None):
    def beats() -> Iterator[int]:
        yield 1
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        Relay(beats(), lambda: job).run()


def test_a_long_turn_that_does_not_hang_keeps_its_thread():
    job = Job()
    asked = threading.Semaphore(0)

    def relieve() -> bool:
        asked.release()
        return False

    def turn(beat_ns: int) -> bool:
        job.threads.append(threading.get_ident())
        return beat_ns != 1 or all(asked.acquire(timeout=20) for _ in range(3))

    job.relieve, job.turn = relieve, turn  # type: ignore[method-assign]
    Relay(iter((1, 2)), lambda: job).run()
    assert len(set(job.threads)) == 1


def test_who_awaits_the_end_acts_on_signals_meanwhile():
    stopping = Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: stopping.set())
    try:

        def beats() -> Iterator[int]:
            yield 1
            os.kill(os.getpid(), signal.SIGUSR2)
            assert stopping.wait(20)
            yield 2

        Relay(beats(), lambda: Job()).run()
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_an_alarm_that_is_put_off_does_not_go_off():
    alarm = Alarm()
    began = time.monotonic_ns()
    alarm.set(1)
    alarm.set(0)
    alarm.set(50_000_000)
    alarm.wait()
    assert time.monotonic_ns() - began >= 50_000_000
    alarm.close()


def test_where_no_thread_can_be_had_the_beat_stays_where_it_is(monkeypatch: pytest.MonkeyPatch):
    def refused(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    job = Job()
    Relay(iter((1, 2, 3)), lambda: job).run()
    assert job.made == [1, 2, 3]
    assert set(job.threads) == {threading.get_ident()}


def test_a_turn_that_raises_ends_the_beat_and_says_so():
    asked: list[int] = []

    def beats() -> Iterator[int]:
        for beat in (1, 2, 3):
            asked.append(beat)
            yield beat

    job = Job()
    job.turn = lambda _beat_ns: {}["odd"]  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="odd"):
        Relay(beats(), lambda: job).run()
    assert asked == [1]
