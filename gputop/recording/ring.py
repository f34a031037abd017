"""The last ten minutes, always in memory: what `R` writes after the event, and what the cursor goes back into.

Frames are packed a second at a time into the very blocks that a file holds, lightly compressed; the newest second is kept
as it is. Memory is bounded by ``max_bytes``: a machine with more to tell keeps fewer minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

from gputop.board import Board
from gputop.frame import Frame
from gputop.frame import Header
from gputop.recording.format import HEAD
from gputop.recording.format import pack_frames
from gputop.recording.format import unpack_frames
from gputop.recording.format import unpack_head
from gputop.recording.seek import Block
from gputop.recording.seek import Seeker
from gputop.recording.seek import frames_between

SECOND = 1_000_000_000
WINDOW_NS = 600 * SECOND
LEVEL = 1


@dataclass(frozen=True, slots=True)
class _Packed:
    """A sealed second."""

    t_ns: int
    data: bytes

    def frames(self) -> Sequence[Frame]:
        head = unpack_head(self.data)
        return unpack_frames(self.data[HEAD.size :], head.codec) if head else ()


@dataclass(frozen=True, slots=True)
class _Open:
    """The newest second, not packed yet."""

    t_ns: int
    pending: list[Frame]

    def frames(self) -> Sequence[Frame]:
        return tuple(self.pending)


@dataclass(slots=True)
class _Chunk:
    """From one key frame to the next."""

    t_ns: int
    sealed: list[_Packed] = field(default_factory=list)
    pending: list[Frame] = field(default_factory=list)
    size: int = 0

    def blocks(self) -> Sequence[Block]:
        pending = self.pending
        return [*self.sealed, _Open(pending[0].t_ns, pending)] if pending else list(self.sealed)

    def seal(self) -> int:
        """Pack what is pending; the bytes that takes."""
        if not self.pending:
            return 0
        packed = _Packed(self.pending[0].t_ns, pack_frames(self.pending, LEVEL))
        self.sealed.append(packed)
        self.pending = []
        self.size += len(packed.data)
        return len(packed.data)

    def drop(self) -> int:
        """Forget what is sealed; the bytes that frees."""
        freed, self.size = self.size, 0
        self.sealed.clear()
        return freed


class Ring:
    """The frames of the last ``window_ns``, in at most ``max_bytes``."""

    def __init__(self, header: Header, window_ns: int = WINDOW_NS, max_bytes: int = 48 << 20) -> None:
        self.header = header
        self.window_ns = window_ns
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.end_ns = 0
        """Time of the newest frame held, 0 while there is none."""
        self._chunks: list[_Chunk] = []
        self._seeker = Seeker(header)

    @property
    def start_ns(self) -> int:
        """Time of the oldest frame held, 0 while there is none."""
        return self._chunks[0].t_ns if self._chunks else 0

    def add(self, frame: Frame) -> None:
        """Keep a frame; the oldest chunk goes when it has left the window. Time that runs backwards begins anew."""
        if frame.t_ns <= self.end_ns:
            self._chunks, self.held_bytes = [], 0
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is None or frame.key:
            self.held_bytes += chunk.seal() if chunk else 0
            chunk = _Chunk(frame.t_ns)
            self._chunks.append(chunk)
            self._trim(frame.t_ns)
        elif chunk.pending and frame.t_ns - chunk.pending[0].t_ns >= SECOND:
            self.held_bytes += chunk.seal()
            self._trim(frame.t_ns)
        chunk.pending.append(frame)
        self.end_ns = frame.t_ns

    def board_at(self, t_ns: int) -> Board:
        """What stood at ``t_ns``; an empty board (``seq`` -1) before `start_ns`."""
        return self._seeker.board_at(self._chunks, t_ns)

    def frames(self, start_ns: int, end_ns: int) -> Iterator[Frame]:
        """The frames with ``start_ns <= t_ns < end_ns``."""
        return frames_between(list(self._chunks), start_ns, end_ns)

    def recent(self) -> list[Frame]:
        """The frames since the latest key frame: what a recording that starts now begins with."""
        return list(self.frames(self._chunks[-1].t_ns, self.end_ns + 1)) if self._chunks else []

    def sealed(self) -> list[bytes]:
        """Everything held as the blocks of a recording, see `gputop.recording.writer.write_blocks`; they are shared, not copied."""
        if self._chunks:
            self.held_bytes += self._chunks[-1].seal()
        return [packed.data for chunk in self._chunks for packed in chunk.sealed]

    def _trim(self, now: int) -> None:
        """Drop the oldest chunks, and of the one that grows what exceeds all bounds."""
        while len(self._chunks) > 1 and (self.held_bytes > self.max_bytes or now - self._chunks[1].t_ns >= self.window_ns):
            self.held_bytes -= self._chunks.pop(0).size
        if self.held_bytes > self.max_bytes:
            self.held_bytes -= self._chunks[0].drop()
