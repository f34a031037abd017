"""What brings back a damaged block of a run: all of its blocks, each filled up with zeros, exclusive-ored.

payload = msgpack [[size of each block of the run, head included, in the order in which they stand right before this one], bytes]
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from gputop.recording.format import HEAD
from gputop.recording.format import KIND_PARITY
from gputop.recording.format import MAX_BLOCK_BYTES
from gputop.recording.format import FormatError
from gputop.recording.format import pack
from gputop.recording.format import unpack_head
from gputop.recording.scan import Place
from gputop.recording.scan import payload_at
from gputop.recording.scan import places

MOST_IN_RUN_BYTES = 64 << 20
"""How far behind a block its run's parity is looked for."""


class Parity:
    """Of the blocks of a run, as they are written."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._mixed = 0

    def add(self, block: bytes) -> None:
        """The run's next block."""
        self.sizes.append(len(block))
        self._mixed ^= int.from_bytes(block, "little")

    def pack(self, t_ns: int) -> bytes:
        """The block that ends the run."""
        mixed = self._mixed.to_bytes(max(self.sizes), "little")
        return pack(KIND_PARITY, msgspec.msgpack.encode([self.sizes, mixed]), t_ns=t_ns)


def mend(fd: int, offset: int, end: int) -> tuple[Place, bytes]:
    """The block of a run that stood at ``offset``, and its payload. FormatError where it cannot be brought back."""
    end = min(end, offset + MOST_IN_RUN_BYTES)
    parity = next((place for place in places(fd, offset + 1, end) if place.head.kind == KIND_PARITY), None)
    if parity is None:
        raise FormatError("a block is damaged")
    sizes, mixed = _open(payload_at(fd, parity))
    starts = list(accumulate(sizes, initial=parity.offset - sum(sizes)))
    if starts[0] < 0 or offset not in starts[:-1]:
        raise FormatError("a block is damaged")
    whole, size = int.from_bytes(mixed, "little"), sizes[starts.index(offset)]
    for start, length in zip(starts, sizes, strict=False):
        if start != offset:
            whole ^= int.from_bytes(os.pread(fd, length, start), "little")
    return _checked(offset, whole.to_bytes(max(len(mixed), *sizes), "little")[:size])


def _open(payload: bytes) -> tuple[Sequence[int], bytes]:
    try:
        sizes, mixed = msgspec.msgpack.decode(payload, type=tuple[list[int], bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"a parity is broken: {error}") from None
    if not sizes or min(sizes) < HEAD.size or max(sizes) > min(len(mixed), MAX_BLOCK_BYTES):
        raise FormatError("a parity is broken")
    return sizes, mixed


def _checked(offset: int, block: bytes) -> tuple[Place, bytes]:
    head = unpack_head(block)
    payload = block[HEAD.size :]
    if head is None or head.size != len(payload) or zlib.crc32(payload) != head.check:
        raise FormatError("more than one block of a run is damaged")
    return Place(offset, head), payload
