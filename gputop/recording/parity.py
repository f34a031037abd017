"""What brings back damaged stretches of a run, wherever they lie: a Reed-Solomon code over segments of its bytes.

The blocks of a run, with the reference right before them, or as many as `MOST_SEGMENTS` hold, are a *group*: its bytes are cut into
segments, the last filled up with zeros, and row j of the parity is the sum of all segments, segment i multiplied by 1 / (j ^ (16 + i))
in GF(256) (a Cauchy matrix). So many segments as there are rows, whichever, can be brought back; which are damaged is told by their
checks. Right behind the group stand two blocks of parity, one with the first rows, one with the others, for what damages the end of a
group may hit one of them.

    payload  = table rows                                                       little-endian
    table    = length u32, segment u32, segments u8, rows u8, first u8, count u8, check u16 of each segment, check u16 of each row,
               CRC-32 of the table so far
    length   = of the group; segment: bytes in one
    rows     = of both blocks; those in this one are ``count`` from ``first`` on, each as long as a segment
    check    = CRC-32, its lower half
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gputop.recording.format import HEAD, KIND_PARITY, FormatError, pack, unpack_head
from gputop.recording.galois import inverse, solve, times
from gputop.recording.scan import Place, places, read_through

SEGMENT_BYTES = 1024
"""Of usual groups: a lost disk block of 4 KiB hits five of them at most."""
ROWS = 6
FIRST_ROWS = 4
"""In the first block of two: more than a disk block, so that one that is lost does not hit the end of a group and both tables."""
MOST_SEGMENTS = 239
"""With the rows, and what is left free between, as many as there are numbers."""
_FIRST_SEGMENT = 16
MOST_BEHIND_BYTES = 64 << 20
"""How far behind a block its group's parity is looked for."""
_TABLE = struct.Struct("<IIBBBB")
_CHECK = struct.Struct("<I")


class Parity:
    """Of a group, as its blocks are written."""

    def __init__(self) -> None:
        self.length = 0
        self._segment = SEGMENT_BYTES
        self._checks: list[int] = []
        self._rows = [0] * ROWS
        self._rest = b""

    def has_room_for(self, block: bytes) -> bool:
        """Whether the block may stand in the same group; one that stands alone always may."""
        return not self.length or self.length + len(block) <= MOST_SEGMENTS * self._segment

    def add(self, block: bytes) -> None:
        """The group's next block."""
        while not self.length and 2 * len(block) > MOST_SEGMENTS * self._segment:
            self._segment *= 2
        self.length += len(block)
        data = self._rest + block
        whole = len(data) - len(data) % self._segment
        for start in range(0, whole, self._segment):
            self._fold(data[start : start + self._segment])
        self._rest = data[whole:]

    @property
    def packed_bytes(self) -> int:
        """How long `pack` is."""
        segments = -(-self.length // self._segment)
        return sum(part.block_bytes for part in _Table(self.length, self._segment, [0] * segments, [0] * ROWS).parts())

    def pack(self, t_ns: int) -> bytes:
        """The two blocks that end the group."""
        if self._rest:
            self._fold(self._rest.ljust(self._segment, b"\0"))
            self._rest = b""
        rows = [row.to_bytes(self._segment, "little") for row in self._rows]
        parts = _Table(self.length, self._segment, self._checks, [_check(row) for row in rows]).parts()
        payloads = [part.packed() + b"".join(rows[part.first : part.first + part.count]) for part in parts]
        return b"".join(pack(KIND_PARITY, payload, t_ns=t_ns) for payload in payloads)

    def _fold(self, segment: bytes) -> None:
        i = len(self._checks)
        self._checks.append(_check(segment))
        for j, row in enumerate(self._rows):
            self._rows[j] = row ^ int.from_bytes(segment.translate(times(_factor(j, i))), "little")


class _Table(Struct, frozen=True):
    length: int
    segment: int
    checks: Sequence[int]
    """Of the segments."""
    row_checks: Sequence[int]
    first: int = 0
    count: int = 0

    @property
    def block_bytes(self) -> int:
        """Of a block with this table and its rows."""
        return HEAD.size + _TABLE.size + 2 * (len(self.checks) + len(self.row_checks)) + _CHECK.size + self.count * self.segment

    def parts(self) -> tuple[_Table, _Table]:
        """The tables of both blocks."""
        told = self.length, self.segment, self.checks, self.row_checks
        return _Table(*told, 0, FIRST_ROWS), _Table(*told, FIRST_ROWS, len(self.row_checks) - FIRST_ROWS)

    def packed(self) -> bytes:
        sizes = len(self.checks), len(self.row_checks)
        checks = struct.pack(f"<{sum(sizes)}H", *self.checks, *self.row_checks)
        table = _TABLE.pack(self.length, self.segment, *sizes, self.first, self.count) + checks
        return table + _CHECK.pack(zlib.crc32(table))


class Group(Struct, frozen=True):
    """A group of a file, as one of its tables tells of it."""

    start: int
    table: _Table

    @property
    def end(self) -> int:
        """Where its parity begins."""
        return self.start + self.table.length

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


def groups(fd: int, offset: int, end: int) -> Iterator[tuple[Place, Group | None]]:
    """The blocks between two offsets, with the group that each one's sound table tells of: mostly each twice."""
    for place in places(fd, offset, end):
        yield place, _group_of(fd, place) if place.head.kind == KIND_PARITY else None


def _group_of(fd: int, place: Place) -> Group | None:
    table = _table(read_through(fd, place.head.size, place.offset + HEAD.size))
    if table is None:
        return None
    start = place.offset - table.length - (table.parts()[0].block_bytes if table.first else 0)
    return Group(start, table) if start >= 0 else None


def repaired(fd: int, group: Group) -> bytes | None:
    """Its bytes as they were, None where they cannot be brought back."""
    table = group.table
    segments = _segments(read_through(fd, table.length, group.start), table)
    lost = [i for i, (segment, check) in enumerate(zip(segments, table.checks, strict=True)) if _check(segment) != check]
    rows = _rows(fd, group.end, table)
    if len(lost) > len(rows):
        return None
    for i, segment in zip(lost, _lost(segments, lost, rows), strict=True):
        segments[i] = segment.to_bytes(table.segment, "little")
    return b"".join(segments)[: table.length]


def block_in(group: bytes, start: int, offset: int) -> tuple[Place, bytes]:
    """The block that stands at an offset of the file, in a group that begins at ``start``, and its payload. FormatError if none does."""
    head = unpack_head(group, offset - start)
    begin = offset - start + HEAD.size
    payload = group[begin : begin + head.size] if head else b""
    if head is None or len(payload) != head.size or zlib.crc32(payload) != head.check:
        raise FormatError("a block is damaged")
    return Place(offset, head), payload


def _lost(segments: Sequence[bytes], lost: Sequence[int], rows: Sequence[tuple[int, bytes]]) -> list[int]:
    """The segments of these numbers from all others, by (number, bytes) of at least as many rows."""
    sums = []
    for j, row in rows[: len(lost)]:
        total = int.from_bytes(row, "little")
        for i, segment in enumerate(segments):
            if i not in lost:
                total ^= int.from_bytes(segment.translate(times(_factor(j, i))), "little")
        sums.append(total)
    matrix = [[_factor(j, i) for i in lost] for j, _ in rows[: len(lost)]]
    return solve(matrix, sums, len(segments[0])) if lost else []


def _table(payload: bytes) -> _Table | None:
    """What a block of parity begins with, None where that is damaged."""
    if len(payload) < _TABLE.size:
        return None
    length, segment, segments, rows, first, count = _TABLE.unpack_from(payload)
    end = _TABLE.size + 2 * (segments + rows)
    if len(payload) < end + _CHECK.size or zlib.crc32(payload[:end]) != _CHECK.unpack_from(payload, end)[0]:
        return None
    sane = 0 < length <= MOST_BEHIND_BYTES and 0 < segments <= MOST_SEGMENTS and rows == ROWS
    if not sane or not 0 < segment < SEGMENT_BYTES + length or -(-length // segment) != segments:
        return None
    checks = struct.unpack_from(f"<{segments + rows}H", payload, _TABLE.size)
    return _Table(length, segment, checks[:segments], checks[segments:], first, count)


def _rows(fd: int, offset: int, table: _Table) -> list[tuple[int, bytes]]:
    """(number, bytes) of the sound rows of a group's two blocks, which begin at ``offset``."""
    found = []
    for part in table.parts():
        offset += part.block_bytes
        data = read_through(fd, part.count * table.segment, offset - part.count * table.segment)
        for j in range(part.count):
            row = data[j * table.segment : (j + 1) * table.segment]
            if _check(row) == table.row_checks[part.first + j]:
                found.append((part.first + j, row))
    return found


def _segments(group: bytes, table: _Table) -> list[bytes]:
    filled = group.ljust(table.segment * len(table.checks), b"\0")
    return [filled[start : start + table.segment] for start in range(0, len(filled), table.segment)]


def _check(data: bytes) -> int:
    return zlib.crc32(data) & 0xFFFF


def _factor(row: int, segment: int) -> int:
    return inverse(row ^ (_FIRST_SEGMENT + segment))
