"""Finding the blocks of a file: through its index where there is one, by their heads where there is none."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from errno import EIO
from itertools import pairwise

from msgspec import Struct

from gputop.recording.columns.layout import tick_ns
from gputop.recording.format import HEAD, KIND_FRAMES, KIND_HEADER, KIND_INDEX, KIND_REFERENCE, MAGIC, SYNC, FormatError, Head, unpack_head
from gputop.recording.index import Index, unpack_index

WINDOW_BYTES = 1 << 18
SECTOR_BYTES = 4096
TAIL_BYTES = 8 << 20
"""How far from the end an index is looked for; more than a writer puts between two."""


class Place(Struct, frozen=True):
    """A block in a file."""

    offset: int
    head: Head

    @property
    def end(self) -> int:
        """Offset of the byte behind it."""
        return self.offset + HEAD.size + self.head.size


def read_through(fd: int, size: int, offset: int) -> bytes:
    """What stands at an offset, with zeros for what lies on a bad sector."""
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


def scan(fd: int, start: int, end: int) -> list[Place]:
    """The whole blocks between two offsets; their payloads are not looked at."""
    return list(places(fd, start, end))


def places(fd: int, start: int, end: int) -> Iterator[Place]:
    """The same, one by one."""
    offset, syncs = start, _Syncs(fd, end)
    while offset + HEAD.size <= end:
        head = unpack_head(read_through(fd, HEAD.size, offset))
        if head is not None and offset + HEAD.size + head.size <= end:
            yield Place(offset, head)
            offset += HEAD.size + head.size
        else:
            offset = syncs.find(offset + 1)


class _Syncs:
    """Finds the words at which blocks may begin; each part of the file is read once, however many there are."""

    def __init__(self, fd: int, end: int) -> None:
        self._fd, self._end = fd, end
        self._begin, self._window = 0, b""

    def find(self, offset: int) -> int:
        """Where the next one at or behind an offset stands; the end where there is none."""
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


def payload_at(fd: int, place: Place) -> bytes:
    """A block's payload. Raises FormatError where its check fails or it cannot be read."""
    try:
        payload = os.pread(fd, place.head.size, place.offset + HEAD.size)
    except OSError as error:
        raise FormatError(f"the recording cannot be read: {error.strerror}") from None
    if len(payload) != place.head.size or zlib.crc32(payload) != place.head.check:
        raise FormatError("a block is damaged")
    return payload


def place_at(fd: int, offset: int) -> Place | None:
    """The block whose sound head stands at ``offset``."""
    head = unpack_head(read_through(fd, HEAD.size, offset)) if offset >= 0 else None
    return Place(offset, head) if head else None


def begins_stream(fd: int, place: Place) -> bool:
    """Whether it is the first block of a stream, and no header that is restated."""
    return place.head.kind == KIND_HEADER and read_through(fd, len(MAGIC), place.offset - len(MAGIC)) == MAGIC


def read_indices(fd: int, size: int, mended: Callable[[int], Place | None]) -> list[tuple[Place, Index]]:
    """The index blocks, first to last, if an unbroken chain of them leads from the last one found to the file's beginning, and all that
    they tell of stands where they say. ``mended`` gives the damaged block at an offset, if it can be brought back."""
    chain: list[tuple[Place, Index]] = []
    place = _last_index(fd, size)
    while place is not None and place.head.kind == KIND_INDEX:
        try:
            index = unpack_index(payload_at(fd, place))
        except FormatError:
            return []
        if not _is_true(fd, place, index, mended) or (not chain and _tells_of_another(fd, place, index)):
            return []
        chain.append((place, index))
        if not index.previous:
            return chain[::-1]
        place = place_at(fd, index.previous)
    return []


def _is_true(fd: int, place: Place, index: Index, mended: Callable[[int], Place | None]) -> bool:
    """Whether chunks begin where the index says, one after the other, as far as these are not damaged themselves.

    The last must be sound or mended: of a file that lacks a piece, or has one more, all are elsewhere from there on.
    """
    offsets = [index.previous, *(offset for _, offset in index.chunks), place.offset]
    times = [*(t_ns for t_ns, _ in index.chunks), index.end_ns]
    if not index.chunks or any(a >= b for a, b in pairwise(offsets)) or any(a > b for a, b in pairwise(times)):
        return False
    if index.end_ns != place.head.t_ns or not all(0 < offset < place.offset for offset in index.references):
        return False
    begins = [(place_at(fd, offset), t_ns) for t_ns, offset in index.chunks]
    begins[-1] = begins[-1][0] or mended(index.chunks[-1][1]), index.chunks[-1][0]
    sound = [begin.head.kind == KIND_FRAMES and tick_ns(begin.head.t_ns) == tick_ns(t_ns) for begin, t_ns in begins if begin is not None]
    copies = [place_at(fd, offset) for offset in index.references]
    return begins[-1][0] is not None and all(sound) and all(copy is None or copy.head.kind == KIND_REFERENCE for copy in copies)


def _tells_of_another(fd: int, place: Place, index: Index) -> bool:
    """Whether the file holds a stream twice: what the last index tells of stands as well in the first, where it is not."""
    return any(begins_stream(fd, between) for between in places(fd, index.chunks[-1][1], place.offset))


def _last_index(fd: int, size: int) -> Place | None:
    """The last index block whose head is sound."""
    start = max(0, size - TAIL_BYTES)
    end = size
    while end > start:
        begin = max(start, end - WINDOW_BYTES)
        window = read_through(fd, min(end + HEAD.size, size) - begin, begin)
        at = window.rfind(SYNC)
        while at >= 0:
            head = unpack_head(window, at)
            if head is not None and head.kind == KIND_INDEX:
                return Place(begin + at, head)
            at = window.rfind(SYNC, 0, at)
        end = begin
    return None
