"""The last ten minutes, always at hand: what `R` writes after the event, and what the cursor goes back into.

Frames are packed into the very blocks that a file holds; the newest are kept in memory as msgpack until they fill a block, the others lie
on a `Shelf`. The more seconds lie together, the less they take: ten a quarter less than one by one. All is bounded by ``max_bytes``: a
machine with more to record keeps fewer minutes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec import Struct, field

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.recording.chunks import Unpacker, pack_alone
from gputop.recording.format import (
    FLAG_KEY,
    FLAG_MARK,
    FLAG_PLAIN,
    HEAD,
    KIND_FRAMES,
    MAGIC,
    TICKS,
    BlockHead,
    flags_of,
    restated,
    unpack_head,
)
from gputop.recording.scan import ChunkStart, Index, pack_index
from gputop.recording.seek import Block, Seeker, frames_between
from gputop.recording.shelf import Shelf, Shelved
from gputop.system.errors import UserError
from gputop.system.output import write_all
from gputop.system.text import clean

WINDOW_NS = 600 * SECOND_NS
MAX_BYTES = 40 << 20
PIECE_BYTES = 1 << 18  # of msgpack: two seconds of a thousand processes, a whole chunk of most machines
_ARRAY = struct.Struct(">BI")  # head of a msgpack array of any length: 0xDD, count
_encode = msgspec.msgpack.Encoder().encode


class _Packed(Struct, frozen=True):
    """A sealed piece."""

    t_ns: int
    shelved: Shelved

    def frames(self) -> Sequence[Frame]:
        """Frames of the block; none if the disk does not return them."""
        data = self.shelved.read()
        head = unpack_head(data)
        return Unpacker().frames(data[HEAD.size :], head) if head else ()


class _Open:
    """A block that grows: a msgpack array of frames."""

    __slots__ = ("_count", "_flags", "_payload", "t_ns")

    def __init__(self, t_ns: int) -> None:
        self.t_ns = t_ns
        self._payload = bytearray(_ARRAY.pack(0xDD, 0))
        self._count = self._flags = 0

    @property
    def is_full(self) -> bool:
        return len(self._payload) >= PIECE_BYTES

    def add(self, frame: Frame) -> None:
        self._count += 1
        self._flags |= flags_of([frame])
        self._payload += frame.packed or _encode(frame)
        _ARRAY.pack_into(self._payload, 0, 0xDD, self._count)

    def frames(self) -> Sequence[Frame]:
        payload = bytes(self._payload)
        return Unpacker().frames(payload, BlockHead(KIND_FRAMES, TICKS, FLAG_PLAIN, len(payload), self.t_ns, 0))

    def packed(self) -> bytes:
        return pack_alone(self._payload, self._flags, self.t_ns)


class _RingChunk(Struct):
    """Blocks from one key frame up to the next."""

    t_ns: int
    shelf: Shelf
    sealed: list[_Packed] = field(default_factory=list)
    pending: _Open | None = None
    size: int = 0  # bytes that the sealed blocks take

    def blocks(self) -> Sequence[Block]:
        return [*self.sealed, self.pending] if self.pending else list(self.sealed)

    def add(self, frame: Frame) -> None:
        """Append to the block that grows, or begin one."""
        if self.pending and self.pending.is_full:
            self.seal()
        self.pending = self.pending or _Open(frame.t_ns)
        self.pending.add(frame)

    def seal(self) -> None:
        """Pack what is pending."""
        if self.pending:
            packed = _Packed(self.pending.t_ns, self.shelf.put(self.pending.packed()))
            self.pending = None
            self.sealed.append(packed)
            self.size += packed.shelved.size

    def drop(self) -> None:
        """Forget what is sealed."""
        self.sealed, self.size = [], 0


class Ring:
    """The frames of the last ``window_ns``, in at most ``max_bytes`` of file or memory."""

    def __init__(self, header: Header, window_ns: int = WINDOW_NS, max_bytes: int = MAX_BYTES) -> None:
        self.header = header
        self.window_ns = window_ns
        self.max_bytes = max_bytes
        self.end_ns = 0  # time of the newest frame held, 0 while empty
        self._chunks: list[_RingChunk] = []
        self._shelf = Shelf()
        self._seeker = Seeker(header)

    @property
    def held_bytes(self) -> int:
        """Bytes that all sealed blocks take."""
        return sum(chunk.size for chunk in self._chunks)

    @property
    def start_ns(self) -> int:
        """Time of the oldest frame held; 0 while empty."""
        return self._chunks[0].t_ns if self._chunks else 0

    def restate(self, header: Header) -> None:
        """Take a header with corrected clocks: it dates what is held."""
        self.header = self._seeker.header = header

    def add(self, frame: Frame) -> None:
        """Keep a frame; the oldest chunk goes when it has left the window. Time that runs backwards begins again."""
        if frame.t_ns <= self.end_ns:
            self._chunks = []
        self.end_ns = frame.t_ns
        if frame.key or not self._chunks:
            if self._chunks:
                self._chunks[-1].seal()
            self._chunks.append(_RingChunk(frame.t_ns, self._shelf))
        self._chunks[-1].add(frame)
        self._trim()

    def board_at(self, t_ns: int) -> Board:
        """Board at ``t_ns``; an empty one (``seq`` -1) before `start_ns`."""
        return self._seeker.board_at(self._chunks, t_ns)

    def frames(self, start_ns: int, end_ns: int) -> Iterator[Frame]:
        """The frames with ``start_ns <= t_ns < end_ns``."""
        return frames_between(list(self._chunks), start_ns, end_ns)

    def recent(self) -> list[Frame]:
        """The frames since the latest key frame: what a recording that starts now begins with."""
        return list(self.frames(self._chunks[-1].t_ns, self.end_ns + 1)) if self._chunks else []

    def for_a_file(self) -> tuple[Header, list[Shelved], int]:
        """Header, blocks and end (ns) of all that is kept, as `write_blocks` takes them."""
        return self.header, self.sealed(), self.end_ns

    def sealed(self, since_ns: int = 0) -> list[Shelved]:
        """Blocks of a recording from the key frame at or before ``since_ns`` on, for `write_blocks`; they are shared, not copied."""
        if self._chunks:
            self._chunks[-1].seal()
        first = max((i for i, chunk in enumerate(self._chunks) if chunk.t_ns <= since_ns), default=0)
        return [packed.shelved for chunk in self._chunks[first:] for packed in chunk.sealed]

    def _trim(self) -> None:
        """Drop the oldest chunks, and of the one that grows what exceeds all bounds."""
        over = self.held_bytes - self.max_bytes
        while len(self._chunks) > 1 and (over > 0 or self.end_ns - self._chunks[1].t_ns >= self.window_ns):
            over -= self._chunks.pop(0).size
        if over > 0:
            self._chunks[0].drop()


def write_blocks(path: str, fd: int, header: Header, blocks: Iterable[Shelved], end_ns: int) -> int:
    """A whole recording until ``end_ns`` into a new file, which is closed; its size in bytes. Where that cannot be it is removed.

    Blocks are copied one by one, for together they need not fit into memory; what the disk does not give back is left out.
    """
    try:
        write_all(fd, MAGIC + 2 * restated(header))
        index = Index(0, [], [], end_ns)
        for block in blocks:
            data = block.read()
            _enter(index, data, os.lseek(fd, 0, os.SEEK_CUR))
            write_all(fd, data)
        write_all(fd, restated(header) + pack_index(index))
        return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError as error:
        with suppress(OSError):
            os.unlink(path)
        raise UserError(f"cannot write {clean(path)}: {error.strerror}") from None
    finally:
        os.close(fd)


def _enter(index: Index, block: bytes, offset: int) -> None:
    """Note in the index what a block that will stand at ``offset`` begins and bears."""
    head = unpack_head(block)
    if head is None:
        return
    if head.flags & FLAG_KEY or not index.chunks:
        index.chunks.append(ChunkStart(head.t_ns, offset, TICKS, head.t_ns))
    index.chunks[-1].last_ns = head.t_ns
    if head.flags & FLAG_MARK:
        index.marks.extend(mark for frame in Unpacker().frames(block[HEAD.size :], head) for mark in frame.marks)
