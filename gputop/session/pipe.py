"""Frames from a pipe: `ssh node gputop collect | gputop replay -`."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

from gputop.model.frame import Frame, Header
from gputop.recording.chunks import Decoder

PIPE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 18
MOST_CHUNKS = 16
"""Read before a rest, which a writer that is ahead of us has filled a pipe in: who read one a rest would fall behind for ever."""
POLL_S = 0.2


class PipeStream:
    """A stream that somebody else writes to the descriptor ``fd``; it is closed with us.

    ``rest`` as in `gputop.session.child`.
    """

    def __init__(self, fd: int, rest: Callable[[], None] | None = None) -> None:
        self._fd = fd
        widen(fd)
        self._rest = rest
        self._decoder = Decoder()
        self._ready: list[Header | Frame] = []
        self._ended = False
        self._closing = False

    def begin(self) -> None:
        """Wait for the header. FormatError where what comes is no stream of ours, or nothing comes at all."""
        while self._decoder.header is None and not self._ended:
            self._ready += self._read()

    def __iter__(self) -> Iterator[Header | Frame]:
        """What comes, as it comes, until the writer ends or `close`."""
        while not self._closing:
            ready, self._ready = self._ready, []
            yield from ready
            if self._rest is not None and ready:
                self._rest()
            if self._ended:
                return
            if self._waits(POLL_S):
                self._ready = self._read_all()

    def ending(self) -> str:
        """Why no more comes."""
        return self._decoder.problem or ("its writer ended" if self._decoder.ended else "it broke off: its writer did not end it")

    def close(self) -> None:
        """Read no more."""
        self._closing = True

    def _waits(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0])

    def _read_all(self) -> list[Header | Frame]:
        """What there is, and what comes as soon as there is room for it."""
        ready = self._read()
        for _ in range(MOST_CHUNKS - 1):
            if self._ended or not self._waits(0.0):
                break
            ready += self._read()
        return ready

    def _read(self) -> list[Header | Frame]:
        data = os.read(self._fd, CHUNK_BYTES)
        if data:
            return self._decoder.feed(data)
        self._ended = True
        self._decoder.finish()
        return []


def widen(fd: int) -> None:
    """Room for seconds of frames, so that a busy screen costs no sample; the kernel may refuse (pipe-user-pages-soft), and what is no pipe
    has room of its own."""
    import fcntl

    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except OSError:
        pass
