"""A recording played as if it were read now: its frames at their pace, its wall clock shifted to this one."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from msgspec.structs import replace

from gputop.model.frame import Frame, Header
from gputop.recording.reader import Recording
from gputop.system.errors import starting


class PlayedStream:
    """Reads like `gputop.session.child.ChildStream`. Raises UserError where the file cannot be opened, or no thread is to be had."""

    def __init__(self, path: str) -> None:
        self._recording = Recording(path)
        shift_ns = time.time_ns() - self._recording.unix_ns_of(self._recording.start_ns)
        header = self._recording.header
        self._ready: deque[Header | Frame] = deque([replace(header, unix_ns=header.unix_ns + shift_ns)])
        self._reads, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._play, name="play", daemon=True)
        with starting():
            self._thread.start()

    def fileno(self) -> int:
        """Of the pipe, for who waits for several things."""
        return self._reads

    def read(self, wait_s: float) -> list[Header | Frame] | None:
        """What has come; None when all has. ``wait_s`` is for who waits for nothing else."""
        if not self._ready and self._thread.is_alive():
            self._closing.wait(wait_s)
        try:
            is_over = not os.read(self._reads, 1 << 16)
        except BlockingIOError:
            is_over = False
        if is_over and not self._ready:
            return None
        return [self._ready.popleft() for _ in range(len(self._ready))]

    def ending(self) -> str:
        """Why no more comes."""
        return "the recording is at its end"

    def close(self) -> None:
        """Play no more."""
        self._closing.set()
        self._thread.join(1.0)
        self._recording.close()
        os.close(self._reads)

    def _play(self) -> None:
        begin_ns, start_ns = time.monotonic_ns(), self._recording.start_ns
        try:
            for frame in self._recording.frames():
                if self._closing.wait(max(0.0, (frame.t_ns - start_ns - (time.monotonic_ns() - begin_ns)) / 1e9)):
                    return
                self._ready.append(frame)
                self._rouse()
        finally:
            os.close(self._writes)  # who waits for more learns that there is none

    def _rouse(self) -> None:
        try:
            os.write(self._writes, b"!")
        except BlockingIOError:
            pass
