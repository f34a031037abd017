"""Markers that `gputop mark` drops from another shell: a datagram socket that only this user can reach."""

from __future__ import annotations

import os
import socket
import time

from gputop.frame import Frame
from gputop.frame import SourceState
from gputop.markers import MAX_BYTES
from gputop.markers import make_directory
from gputop.markers import unpack_mark
from gputop.sources import Beat
from gputop.sources import Settings
from gputop.sources import Unavailable

MOST_A_TICK = 32
LOOK_EVERY_NS = 300_000_000
"""A marker brings its own time, so that looking seldom loses nothing."""
LATEST_NS = 60_000_000_000
"""A marker's own time is believed if it is no older than this."""


class MarksSource:
    """``read`` adds what came since the last tick to ``frame.marks``, with the time at which it was sent."""

    name = "marks"

    def __init__(self, _settings: Settings) -> None:
        self._socket: socket.socket | None = None
        self._path = ""
        self._due_ns = 0

    def open(self) -> SourceState:
        """Raises Unavailable where the socket cannot be made."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._path = os.path.join(make_directory(), f"marks-{os.getpid()}.sock")
            if os.path.lexists(self._path):  # left by a process that had our pid
                os.unlink(self._path)
            listening.bind(self._path)
        except OSError as error:
            listening.close()
            raise Unavailable(f"no socket for markers: {error}", "set XDG_RUNTIME_DIR to a directory of your own") from None
        self._socket = listening
        return SourceState(self.name, "ok")

    def read(self, beat: Beat, frame: Frame) -> None:
        """Take what has come."""
        assert self._socket is not None
        if beat.t_ns < self._due_ns:
            return
        self._due_ns = beat.t_ns + LOOK_EVERY_NS
        for taken in range(MOST_A_TICK):
            try:
                mark = unpack_mark(self._socket.recv(MAX_BYTES))
            except OSError:
                return
            if taken:
                self._due_ns = 0  # where some come at once, others may wait for room
            now = time.monotonic_ns()
            if mark is not None:
                frame.marks.append(mark if now - LATEST_NS < mark.t_ns <= now else type(mark)(now, mark.text))

    def close(self) -> None:
        """Take the socket away."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            try:
                os.unlink(self._path)
            except OSError:
                pass
