"""The one loop: what it gives its readers, and how it waits, rests and ends."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import pytest

from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.stream import reader
from gputop.stream.command import Command
from gputop.stream.reader import Loop, Reader
from gputop.system.errors import UserError
from tests.streams import Given
from tests.wait import PATIENCE_S

HEADER = Header(interval_ns=SECOND_NS)


def frames(count: int, step_s: float = 1.0) -> list[Header | Frame]:
    return [HEADER, *(Frame(seq=i, t_ns=SECOND_NS + round(i * step_s * 1e9), key=i == 0) for i in range(count))]


class Noted(Reader):
    """Notes what it is given, in a list that several share."""

    def __init__(self, name: str = "", notes: list[str] | None = None, rest_s: float = reader.NEVER_S, last: int = 1 << 30) -> None:
        self.name, self.notes = name, [] if notes is None else notes
        self.taken, self.rests = list[int](), 0
        self._rest_s, self._last = rest_s, last

    def begin(self, header: Header) -> None:
        self.notes.append(f"{self.name} begins at {header.interval_ns}")

    def take(self, frame: Frame) -> None:
        self.notes.append(f"{self.name} takes {frame.seq}")
        self.taken.append(frame.seq)

    def miss(self, silent_s: float) -> None:
        self.notes.append(f"{self.name} misses {silent_s:.0f} s")

    def rest(self) -> float:
        self.rests += 1
        return self._rest_s

    def is_over(self) -> bool:
        return self._last in self.taken

    def end(self) -> None:
        self.notes.append(f"{self.name} ends")


class Endless(Given):
    """A stream after whose items nothing comes; it does not end."""

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        return super().read(wait_s) or []


def test_readers_take_each_item_one_after_the_other_and_end_after_the_stream() -> None:
    notes: list[str] = []
    stream = Given(frames(2))
    with Loop(stream, Noted("a", notes), Noted("b", notes)) as loop:
        loop.run()
        assert not stream.is_closed
    assert notes == [
        f"a begins at {SECOND_NS}", f"b begins at {SECOND_NS}", "a takes 0", "b takes 0", "a takes 1", "b takes 1", "a ends", "b ends",
    ]  # fmt: skip
    assert stream.is_closed


def test_a_reader_that_fails_at_its_end_keeps_no_other_from_ending() -> None:
    class Fails(Reader):
        def end(self) -> None:
            raise UserError("full")

    last = Noted()
    with pytest.raises(UserError, match="full"), Loop(Given(frames(1)), Fails(), last) as loop:
        loop.run()
    assert last.notes[-1] == " ends"


def test_a_caller_may_pull_what_the_readers_have_taken() -> None:
    one = Noted()
    with Loop(Given(frames(3), most=1), one) as loop:
        found = [(item.seq, list(one.taken)) for item in loop.items() if isinstance(item, Frame)]
    assert found == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2])]


@pytest.mark.parametrize("most", [1, 1000])
def test_after_the_duration_nothing_is_taken_by_the_frames_own_time(most: int) -> None:
    one = Noted()
    with Loop(Given(frames(100, 0.5), most), one, duration_s=10.0) as loop:
        loop.run()
    assert one.taken == list(range(21))


def test_a_reader_that_is_over_ends_the_loop_and_what_waits_is_taken_if_there_is_time() -> None:
    for drain_s, most in ((PATIENCE_S, 10), (0.0, 4)):
        one = Noted(last=3)
        with Loop(Given(frames(10), most=1), one, drain_s=drain_s) as loop:
            loop.run()
        assert len(one.taken) == most


def test_a_reader_that_rests_long_is_woken_by_a_signal_of_the_end() -> None:
    one, other = Noted(rest_s=PATIENCE_S), Noted(rest_s=2 * PATIENCE_S)
    with Loop(Endless(frames(1)), one, other) as loop:
        threading.Timer(0.2, lambda: (loop.ending.take(signal.SIGTERM), loop.wake())).start()
        began_s = time.monotonic()
        loop.run()
        assert time.monotonic() - began_s < PATIENCE_S
    assert one.rests == 1, "it rested once, and was not woken in between"


def test_readers_rest_before_all_is_taken_only_if_they_have_waited_long(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Noted()
    with Loop(Given(frames(50), most=1), one) as loop:
        loop.run()
    assert one.rests == 2, "once all is taken, and at the end"
    monkeypatch.setattr(reader, "BEHIND_S", 0.0)
    one = Noted(rest_s=PATIENCE_S)
    with Loop(Given(frames(50), most=1), one) as loop:
        for _ in loop.items():
            if one.rests == 40:
                break
    assert one.taken == list(range(len(one.taken)))


def test_silence_is_reported_once_and_readers_hear_of_it_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WAIT_S", 0.01)
    told: list[str] = []

    class Silent(Given):
        looks = 0

        @property
        def waits(self) -> bool:
            return False

        def read(self, wait_s: float) -> list[Header | Frame] | None:
            self.looks += 1
            self.silent_s = 40.0 if 2 < self.looks < 6 else 0.0
            return [] if 2 < self.looks < 6 else super().read(wait_s)

    one = Noted()
    with Loop(Silent(frames(6), most=2), one, notify=told.append) as loop:
        loop.run()
    assert [line.split(":")[0] for line in told] == ["no reading for 40 s", "readings come again"]
    assert one.notes.count(" misses 40 s") == 1
    assert one.notes.index(" misses 40 s") < one.notes.index(" takes 3")


def test_a_readers_descriptors_are_served_while_nothing_comes() -> None:
    read, write = os.pipe()

    class Asked(Reader):
        got = b""

        def descriptors(self) -> tuple[Sequence[int], Sequence[int]]:
            return [read], []

        def serve(self, ready: Iterable[int]) -> None:
            if read in ready:
                self.got += os.read(read, 10)

        def is_over(self) -> bool:
            return self.got == b"end"

    one = Asked()
    with Loop(Endless(frames(1)), one, Noted(rest_s=PATIENCE_S)) as loop:
        threading.Timer(0.1, os.write, (write, b"end")).start()
        loop.run()
    assert one.got == b"end"
    os.close(read)
    os.close(write)


@pytest.fixture
def _handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_a_command_gets_the_signals_and_its_end_ends_the_loop() -> None:
    command = Command(["sh", "-c", "trap 'exit 7' USR1; while :; do sleep 0.01; done"])
    with Loop(Endless(frames(1)), command, Noted(rest_s=PATIENCE_S)) as loop:
        command.listen()
        loop.begin("read")
        command.start()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        command.attend()
        assert not loop.ending.asked, "the signal was the command's"
    assert command.code() == 7


@pytest.mark.usefixtures("_handlers")
def test_an_error_of_a_reader_does_not_end_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken(Reader):
        def take(self, frame: Frame) -> None:
            if frame.seq:
                raise ValueError("out of luck")

    command = Command(["sh", "-c", "sleep 0.2; exit 5"])
    with Loop(Given(frames(5), most=2), command, Broken()) as loop:
        command.listen()
        loop.begin("read")
        command.start()
        command.attend()
        assert "out of luck" in loop.problem
    assert command.code() == 5
    assert "the command runs on" in capsys.readouterr().err


def test_a_stream_that_ends_before_a_frame_is_an_error() -> None:
    stream = Given([HEADER])
    stream.trouble = stream.why = "it has no driver"
    with Loop(stream, Noted()) as loop, pytest.raises(UserError, match="the collector ended at once: it has no driver"):
        loop.begin("read")
