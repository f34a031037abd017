"""Frames from a pipe: `ssh node gputop collect | gputop replay -`."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gputop.frame import Frame
from gputop.frame import Header
from gputop.recording.format import Decoder

if TYPE_CHECKING:
    from gputop.recording.restated import Known

CHUNK_BYTES = 1 << 18
POLL_S = 0.2


class PipeStream:
    """A stream that somebody else writes to the descriptor ``fd``; it is closed with us.

    ``rest`` and ``known`` as in `gputop.stream.child`.
    """

    def __init__(self, fd: int, rest: Callable[[], None] | None = None, known: Known | None = None) -> None:
        self._fd = fd
        self._rest = rest
        self._decoder = Decoder(known)
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
            if select.select([self._fd], [], [], POLL_S)[0]:
                self._ready = self._read()

    def ending(self) -> str:
        """Why no more comes."""
        return self._decoder.problem or "its writer ended"

    def close(self) -> None:
        """Read no more."""
        self._closing = True

    def _read(self) -> list[Header | Frame]:
        data = os.read(self._fd, CHUNK_BYTES)
        if data:
            return self._decoder.feed(data)
        self._ended = True
        self._decoder.finish()
        return []
