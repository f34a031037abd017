"""Frames from a recording, for replay: a place in time that moves forward, jumps and steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from gputop.model.board import Board
from gputop.model.frame import Frame, Header
from gputop.recording.parts import open_recording

STEP_NS = 60_000_000_000  # how far a step looks before it takes larger strides


class FileStream:
    """A recording, or several as one, with a position. Raises UserError as `open_recording` does."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.recording = open_recording(paths)
        self.position_ns = self.recording.start_ns - 1  # everything up to here has been given out

    @property
    def header(self) -> Header:
        """Of the recording."""
        return self.recording.header

    def seek(self, t_ns: int) -> Board:
        """Go to a moment, or to the nearest end; what stood there."""
        self.position_ns = min(max(t_ns, self.recording.start_ns), self.recording.end_ns)
        return self.recording.board_at(self.position_ns)

    def advance(self, t_ns: int) -> Iterator[Frame]:
        """The frames behind the position up to ``t_ns``, which becomes the position as they are taken."""
        for frame in self.recording.frames(self.position_ns + 1, t_ns + 1):
            self.position_ns = frame.t_ns
            yield frame
        self.position_ns = max(self.position_ns, t_ns)

    def next(self) -> Frame | None:
        """Step to the next frame; None at the end."""
        frame = next(self.recording.frames(self.position_ns + 1), None)
        if frame is not None:
            self.position_ns = frame.t_ns
        return frame

    def previous(self) -> Frame | None:
        """Step to the frame before the position; None at the beginning."""
        span_ns = STEP_NS
        while True:
            for frame in deque(self.recording.frames(self.position_ns - span_ns, self.position_ns), maxlen=1):
                self.position_ns = frame.t_ns
                return frame
            if self.position_ns - span_ns < self.recording.start_ns:
                return None
            span_ns *= 8

    def close(self) -> None:
        """Close the file."""
        self.recording.close()
