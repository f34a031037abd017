"""The stream's way out: what a reader that lags still gets."""

from __future__ import annotations

import os
import threading

import pytest

from gputop.model.frame import Frame, Header
from gputop.recording.chunks import Decoder
from gputop.recording.format import pack_frames, pack_header
from gputop.recording.pipe import PipeSink
from gputop.recording.writer import write_all
from gputop.stream import child
from gputop.stream.reader import Loop, Reader
from gputop.stream.restarts import LastingStream


def test_the_last_frames_are_not_cut_off() -> None:
    """More than the pipe holds is pending as the collector ends."""
    reading, writing = os.pipe()
    sink = PipeSink(writing, Header())
    for n in range(5):
        assert sink.send(Frame(n, n + 1, key=n == 0, gone=[70_000] * 50_000))
    assert sink._pending
    read: list[bytes] = []

    def drain() -> None:
        while data := os.read(reading, 1 << 16):
            read.append(data)

    thread = threading.Thread(target=drain)
    thread.start()
    sink.close(20.0)
    os.close(writing)
    thread.join()
    os.close(reading)
    frames = [item for item in Decoder().feed(b"".join(read)) if isinstance(item, Frame)]
    assert [frame.seq for frame in frames] == list(range(5))


def test_a_reader_that_takes_nothing_is_not_waited_for_for_ever() -> None:
    reading, writing = os.pipe()
    sink = PipeSink(writing, Header())
    sink.send(Frame(0, 1, key=True, gone=list(range(100_000))))
    assert sink.close(0.01) == len(sink._pending) > 100_000
    os.close(writing)
    os.close(reading)


class OfOneAhead(child.PipeStream):
    """Its writer has always filled the pipe again before we look, however busy this machine is."""

    def _waits(self, seconds: float) -> bool:
        return super()._waits(max(seconds, 60.0))


@pytest.mark.parametrize("widens", [True, False], ids=["wide", "narrow"])
def test_who_rests_between_two_looks_does_not_fall_behind(monkeypatch: pytest.MonkeyPatch, widens: bool) -> None:
    """A pipeful a rest was all that came through: a busy node's screen was a second later every five."""
    if not widens:
        monkeypatch.setattr(child, "widen", lambda _fd: None)
    reading, writing = os.pipe()
    data = pack_header(Header()) + b"".join(pack_frames([Frame(n, n + 1, key=n == 0, gone=[70_000] * 5_000)]) for n in range(200))
    assert len(data) > 40 << 16
    thread = threading.Thread(target=_write, args=(writing, data))
    thread.start()

    class Rests(Reader):
        count = 0

        def rest(self) -> float:
            self.count += 1
            return 0.01

    resting = Rests()
    with Loop(LastingStream(OfOneAhead(reading)), resting) as loop:
        items = list(loop.items())
    thread.join()
    os.close(reading)
    assert [item.seq for item in items if isinstance(item, Frame)] == list(range(200))
    assert resting.count <= 12


def _write(fd: int, data: bytes) -> None:
    with open(fd, "wb", buffering=0) as file:
        write_all(file.fileno(), data)
