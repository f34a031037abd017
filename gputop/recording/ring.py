"""The last ten minutes, always in memory: what `R` writes after the event, and what the cursor goes back into.

Frames are packed a second at a time into the very blocks that a file holds, lightly compressed; the newest second is kept
as msgpack. Once a chunk is whole its seconds are packed together and closer, which takes a quarter off. Memory is bounded by
``max_bytes``: a machine with more to tell keeps fewer minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import msgspec
import zstandard

from gputop.board import Board
from gputop.frame import Frame
from gputop.frame import Header
from gputop.recording.format import CODEC_PLAIN
from gputop.recording.format import CODEC_ZSTD
from gputop.recording.format import HEAD
from gputop.recording.format import KIND_FRAMES
from gputop.recording.format import flags_of
from gputop.recording.format import inflate
from gputop.recording.format import pack
from gputop.recording.format import unpack_frames
from gputop.recording.format import unpack_head
from gputop.recording.seek import Block
from gputop.recording.seek import Seeker
from gputop.recording.seek import frames_between

SECOND = 1_000_000_000
WINDOW_NS = 600 * SECOND
MAX_BYTES = 48 << 20
LEVEL, CLOSER_LEVEL = 1, 3
JOINED_BYTES = 4 << 20
"""Of msgpack, in a block of seconds packed together: so much is decoded when the cursor goes there."""
_ARRAY = 5
"""Bytes of the head of a msgpack array of any length."""
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Packed:
    """A sealed block."""

    t_ns: int
    data: bytes

    def payload(self) -> tuple[bytes, int]:
        """A msgpack array of frames, and the head's flags."""
        head = unpack_head(self.data)
        assert head is not None
        return inflate(self.data[HEAD.size :], head.codec), head.flags

    def frames(self) -> Sequence[Frame]:
        return unpack_frames(self.payload()[0], CODEC_PLAIN)


class _Open:
    """A block that grows: a msgpack array of frames."""

    __slots__ = ("_flags", "payload", "t_ns")

    def __init__(self, t_ns: int) -> None:
        self.t_ns = t_ns
        self.payload = bytearray(b"\xdd\0\0\0\0")
        self._flags = 0

    def add(self, frame: Frame) -> None:
        self._put(1, _encode(frame), flags_of([frame]))

    def join(self, payload: bytes, flags: int) -> None:
        """Add what another block holds."""
        self._put(_count(payload), memoryview(payload)[_ARRAY:], flags)

    def frames(self) -> Sequence[Frame]:
        return unpack_frames(bytes(self.payload), CODEC_PLAIN)

    def seal(self, level: int) -> _Packed:
        content = zstandard.ZstdCompressor(level=level).compress(self.payload)
        return _Packed(self.t_ns, pack(KIND_FRAMES, content, CODEC_ZSTD, self._flags, self.t_ns))

    def _put(self, count: int, content: bytes | memoryview, flags: int) -> None:
        self.payload[1:_ARRAY] = (_count(self.payload) + count).to_bytes(4, "big")
        self.payload += content
        self._flags |= flags


def _count(payload: bytes | bytearray) -> int:
    return int.from_bytes(payload[1:_ARRAY], "big")


@dataclass(slots=True)
class _Chunk:
    """From one key frame to the next."""

    t_ns: int
    sealed: list[_Packed] = field(default_factory=list)
    pending: _Open | None = None
    size: int = 0
    """Bytes that the sealed blocks take."""

    def blocks(self) -> Sequence[Block]:
        return [*self.sealed, self.pending] if self.pending else list(self.sealed)

    def add(self, frame: Frame) -> bool:
        """Append to the newest second; True where another one begins with it."""
        begins = self.pending is None or frame.t_ns - self.pending.t_ns >= SECOND
        if begins:
            self.seal()
        self.pending = self.pending or _Open(frame.t_ns)
        self.pending.add(frame)
        return begins

    def seal(self) -> None:
        """Pack what is pending."""
        if self.pending:
            self._keep(self.pending.seal(LEVEL))
            self.pending = None

    def close(self) -> None:
        """No more will come: pack its seconds together."""
        self.seal()
        seconds = self.sealed
        self.drop()
        together = _Open(self.t_ns)
        for second in seconds:
            payload, flags = second.payload()
            if _ARRAY < len(together.payload) > JOINED_BYTES - len(payload):
                self._keep(together.seal(CLOSER_LEVEL))
                together = _Open(second.t_ns)
            together.join(payload, flags)
        self._keep(together.seal(CLOSER_LEVEL))

    def drop(self) -> None:
        """Forget what is sealed."""
        self.sealed, self.size = [], 0

    def _keep(self, packed: _Packed) -> None:
        self.sealed.append(packed)
        self.size += len(packed.data)


class Ring:
    """The frames of the last ``window_ns``, in at most ``max_bytes``."""

    def __init__(self, header: Header, window_ns: int = WINDOW_NS, max_bytes: int = MAX_BYTES) -> None:
        self.header = header
        self.window_ns = window_ns
        self.max_bytes = max_bytes
        self.end_ns = 0
        """Time of the newest frame held, 0 while there is none."""
        self._chunks: list[_Chunk] = []
        self._seeker = Seeker(header)

    @property
    def held_bytes(self) -> int:
        """Bytes that all sealed blocks take."""
        return sum(chunk.size for chunk in self._chunks)

    @property
    def start_ns(self) -> int:
        """Time of the oldest frame held, 0 while there is none."""
        return self._chunks[0].t_ns if self._chunks else 0

    def add(self, frame: Frame) -> None:
        """Keep a frame; the oldest chunk goes when it has left the window. Time that runs backwards begins anew."""
        if frame.t_ns <= self.end_ns:
            self._chunks = []
        self.end_ns = frame.t_ns
        if frame.key or not self._chunks:
            if self._chunks:
                self._chunks[-1].close()
            self._chunks.append(_Chunk(frame.t_ns))
        if self._chunks[-1].add(frame):
            self._trim()

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
            self._chunks[-1].seal()
        return [packed.data for chunk in self._chunks for packed in chunk.sealed]

    def _trim(self) -> None:
        """Drop the oldest chunks, and of the one that grows what exceeds all bounds."""
        over = self.held_bytes - self.max_bytes
        while len(self._chunks) > 1 and (over > 0 or self.end_ns - self._chunks[1].t_ns >= self.window_ns):
            over -= self._chunks.pop(0).size
        if over > 0:
            self._chunks[0].drop()
