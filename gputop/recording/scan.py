"""Blocks of a file: found through its index if there is one, else by their heads."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from errno import EIO
from itertools import pairwise

import msgspec
from msgspec import Struct, field

from gputop.model.frame import Mark
from gputop.recording.format import (
    ENDS,
    FLAG_KEY,
    FLAG_MARK,
    HEAD,
    KIND_FRAMES,
    KIND_HEADER,
    KIND_INDEX,
    MAGIC,
    SYNC,
    TICKS,
    TIERS,
    BlockHead,
    FormatError,
    pack,
    unpack_head,
)
from gputop.system.decoding import BROKEN
from gputop.system.text import clean

WINDOW_BYTES = 1 << 18  # that are searched at once for a sync
SECTOR_BYTES = 4096
TAIL_BYTES = 8 << 20  # from the file's end, in which an index is looked for; more than a writer puts between two
HEADER_BYTES = 1 << 16  # more than a header takes


class ChunkStart(Struct, array_like=True):
    """Position of a chunk."""

    t_ns: int  # of its first frame
    offset: int
    tier: int
    last_ns: int  # of the first frame of its last piece


class Index(Struct, frozen=True, omit_defaults=True):
    """The payload of an index block, as msgpack: the chunks since the index before. It stands every few minutes and at the end of a file.

    It only saves time: without it, or where it is damaged, the heads of all blocks are read.
    """

    previous: int = 0  # offset of the index block before, 0 for none
    chunks: list[ChunkStart] = []  # chunks of seconds and minutes may have grown since
    marks: list[Mark] = []
    end_ns: int = 0  # time of the last frame
    findings: int = 0  # offset of the last findings before it, 0 for none


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Index).decode


def pack_index(index: Index) -> bytes:
    """The block of an index."""
    return pack(KIND_INDEX, _encode(index), t_ns=index.end_ns)


class BlockPlace(Struct, frozen=True):
    """A block in a file."""

    offset: int
    head: BlockHead

    @property
    def end(self) -> int:
        """Offset of the byte behind it."""
        return self.offset + HEAD.size + self.head.size


def open_regular(path: str) -> int:
    """A descriptor of ``path`` to read from. FormatError, in one line, where it cannot be opened or is no regular file: a FIFO would block,
    a device never end."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        mode = os.fstat(fd).st_mode
    except OSError as error:
        raise FormatError(f"cannot open {clean(path) or 'a file without a name'}: {error.strerror}") from None
    except ValueError:
        raise FormatError(f"{clean(path)!r} is no file name") from None
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise FormatError(f"{clean(path)} is a directory" if stat.S_ISDIR(mode) else f"{clean(path)} is no regular file")


def read_through(fd: int, size: int, offset: int) -> bytes:
    """The bytes at an offset, with zeros for bad sectors."""
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        if error.errno != EIO:
            raise
        edges = [offset, *range(offset - offset % SECTOR_BYTES + SECTOR_BYTES, offset + size, SECTOR_BYTES), offset + size]
        return b"".join(_piece(fd, end - start, start) for start, end in pairwise(edges))


def _piece(fd: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except OSError:
        return bytes(size)


def places(fd: int, start: int, end: int) -> Iterator[BlockPlace]:
    """The whole blocks between two offsets; their payloads are not read."""
    offset, syncs = start, _Syncs(fd, end)
    while offset + HEAD.size <= end:
        head = unpack_head(read_through(fd, HEAD.size, offset))
        if head is not None and offset + HEAD.size + head.size <= end:
            yield BlockPlace(offset, head)
            offset += HEAD.size + head.size
        else:
            offset = syncs.find(offset + 1)


class _Syncs:
    """Finds the syncs at which blocks may begin; each part of the file is read once."""

    def __init__(self, fd: int, end: int) -> None:
        self._fd, self._end = fd, end
        self._begin, self._window = 0, b""

    def find(self, offset: int) -> int:
        """Offset of the next sync at or behind an offset; else the file's end."""
        while offset < self._end:
            if not self._begin <= offset <= self._begin + len(self._window) - len(SYNC):
                self._begin, self._window = offset, read_through(self._fd, min(WINDOW_BYTES, self._end - offset), offset)
            at = self._window.find(SYNC, offset - self._begin)
            if at >= 0:
                return self._begin + at
            if len(self._window) <= len(SYNC):
                break
            offset = self._begin + len(self._window) - len(SYNC) + 1
        return self._end


def payload_at(fd: int, place: BlockPlace) -> bytes:
    """A block's payload. FormatError if its check fails or it cannot be read."""
    try:
        payload = os.pread(fd, place.head.size, place.offset + HEAD.size)
    except OSError as error:
        raise FormatError(f"the recording cannot be read: {error.strerror}") from None
    if len(payload) != place.head.size or zlib.crc32(payload) != place.head.check:
        raise FormatError("a block is damaged")
    return payload


def place_at(fd: int, offset: int) -> BlockPlace | None:
    """The block with a sound head at ``offset``."""
    head = unpack_head(read_through(fd, HEAD.size, offset)) if offset >= 0 else None
    return BlockPlace(offset, head) if head else None


def begins_stream(fd: int, place: BlockPlace) -> bool:
    """True if the block is the header right behind a magic, not a repeated one."""
    return place.head.kind == KIND_HEADER and read_through(fd, len(MAGIC), place.offset - len(MAGIC)) == MAGIC


class Contents(Struct):
    """Contents of a file, without its frames. They grow with the file."""

    chunks: dict[int, list[ChunkStart]] = field(default_factory=lambda: {tier: [] for tier in TIERS})  # by tier, in order of time
    marks: list[Mark] = field(default_factory=list)  # markers of the index
    marked: list[BlockPlace] = field(default_factory=list)  # later blocks that hold markers
    last: BlockPlace | None = None  # the last block of frames, None where only the index was read
    end_ns: int = 0  # time of the last frame by the index
    findings: int = 0  # offset of the findings by the last index, 0 for none
    end: int = len(MAGIC)  # offset behind the last whole block
    ended: bool = False  # whether that block is one of `ENDS`
    header: BlockPlace | None = None  # the last header, by the clocks as they were known last
    another: int = 0  # offset at which another stream begins, as after `cat a b`, 0 for none; what stands there is not read

    @classmethod
    def load(cls, fd: int, size: int) -> Contents:
        """Contents of a file: from its indices as far as they go, then from the heads of blocks."""
        contents = cls()
        for place, index in _read_indices(fd, size):
            for chunk in index.chunks:
                known = contents.chunks[chunk.tier]
                if known and known[-1].offset == chunk.offset:  # it has grown since the index before
                    known.pop()
                known.append(chunk)
            contents.marks += index.marks
            contents.header = _header_before(fd, place.offset)
            contents.end_ns, contents.end, contents.findings, contents.ended = index.end_ns, place.end, index.findings, True
        contents.extend(fd, size)
        return contents

    def extend(self, fd: int, size: int) -> None:
        """Take in what was appended."""
        for place in places(fd, self.end, self.another or size):
            if self.end > len(MAGIC) and begins_stream(fd, place):
                self.another = place.offset - len(MAGIC)
                return
            if place.head.kind == KIND_HEADER:
                self.header = place
            elif place.head.kind == KIND_FRAMES:
                self._take(place)
            self.end, self.ended = place.end, place.head.kind in ENDS

    def _take(self, place: BlockPlace) -> None:
        """The first chunk begins with the first sound piece, even where its key frame is damaged."""
        head, chunks = place.head, self.chunks.get(place.head.tier)
        if chunks is None:
            return
        if not chunks or (head.flags & FLAG_KEY and head.t_ns >= chunks[-1].t_ns):
            chunks.append(ChunkStart(head.t_ns, place.offset if chunks or head.tier else self.end, head.tier, head.t_ns))
        chunks[-1].last_ns = max(chunks[-1].last_ns, head.t_ns)
        if head.tier == TICKS:
            self.last = place
            if head.flags & FLAG_MARK:
                self.marked.append(place)


def _header_before(fd: int, offset: int) -> BlockPlace | None:
    """The header that is repeated right before an index."""
    found = [place for place in places(fd, max(0, offset - HEADER_BYTES), offset) if place.head.kind == KIND_HEADER]
    return found[-1] if found and found[-1].end == offset else None


def _read_indices(fd: int, size: int) -> list[tuple[BlockPlace, Index]]:
    """The index blocks, first to last; none if a part of their chain is damaged, or names chunks that do not stand there."""
    chain: list[tuple[BlockPlace, Index]] = []
    place = _last_index(fd, size)
    while place is not None and place.head.kind == KIND_INDEX:
        try:
            index = _decode(payload_at(fd, place))
        except (*BROKEN, FormatError):
            return []
        if not _is_true(fd, place, index) or (not chain and _has_second_stream(fd, place, index)):
            return []
        chain.append((place, index))
        if not index.previous:
            return chain[::-1]
        place = place_at(fd, index.previous)
    return []


def _is_true(fd: int, place: BlockPlace, index: Index) -> bool:
    """True if chunks begin where the index has them, one after the other in each tier, as far as their heads are sound.

    The last head must be: in a file that lacks some bytes, or has some more, all chunks behind the place are shifted.
    """
    tiers = [[chunk for chunk in index.chunks if chunk.tier == tier] for tier in TIERS]
    ordered = all(a.offset < b.offset and a.t_ns <= a.last_ns <= b.t_ns for chunks in tiers for a, b in pairwise(chunks))
    bounded = all(len(MAGIC) <= one.offset < place.offset and one.t_ns <= one.last_ns <= index.end_ns for one in index.chunks)
    if not ordered or not bounded or index.end_ns != place.head.t_ns or sum(map(len, tiers)) != len(index.chunks) or not index.chunks:
        return False
    begins = [(place_at(fd, chunk.offset), chunk) for chunk in index.chunks]
    sound = [
        place.head.kind == KIND_FRAMES and (place.head.t_ns, place.head.tier) == (chunk.t_ns, chunk.tier)
        for place, chunk in begins if place is not None
    ]  # fmt: skip
    return max(begins, key=lambda begin: begin[1].offset)[0] is not None and all(sound)


def _has_second_stream(fd: int, place: BlockPlace, index: Index) -> bool:
    """True if the file holds a stream twice: then the last index is also true of the first one."""
    return any(begins_stream(fd, between) for between in places(fd, max(chunk.offset for chunk in index.chunks), place.offset))


def _last_index(fd: int, size: int) -> BlockPlace | None:
    """The last index block with a sound head."""
    start = max(0, size - TAIL_BYTES)
    end = size
    while end > start:
        begin = max(start, end - WINDOW_BYTES)
        window = read_through(fd, min(end + HEAD.size, size) - begin, begin)
        at = window.rfind(SYNC)
        while at >= 0:
            head = unpack_head(window, at)
            if head is not None and head.kind == KIND_INDEX:
                return BlockPlace(begin + at, head)
            at = window.rfind(SYNC, 0, at)
        end = begin
    return None
