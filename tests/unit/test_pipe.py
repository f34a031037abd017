"""The stream's way out: what a reader that lags still gets."""

from __future__ import annotations

import os
import threading

from gputop.frame import Frame
from gputop.frame import Header
from gputop.recording.format import Decoder
from gputop.recording.pipe import PipeSink


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
    sink.close(0.01)
    assert sink._pending
    os.close(writing)
    os.close(reading)
