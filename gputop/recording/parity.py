"""What brings back damaged blocks of a run: every other one, each filled up with zeros, exclusive-ored, and likewise those between.

payload = msgpack [[size of each block of the run, head included, in the order in which they stand right before this one], [bytes]]

The i-th of n byte strings is of blocks i, i + n, i + 2n …, for what a lost disk block hits are neighbours. Older recordings have
one, without the array around it.
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

LANES = 2
"""Neighbours that may be damaged together. Each costs about what a second of a run does."""
MOST_IN_RUN_BYTES = 64 << 20
"""How far behind a block its run's parity is looked for."""


class Parity:
    """Of the blocks of a run, as they are written."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._mixed = [0] * LANES

    def add(self, block: bytes) -> None:
        """The run's next block."""
        self._mixed[len(self.sizes) % LANES] ^= int.from_bytes(block, "little")
        self.sizes.append(len(block))

    def pack(self, t_ns: int) -> bytes:
        """The block that ends the run."""
        lanes = range(min(LANES, len(self.sizes)))
        mixed = [self._mixed[lane].to_bytes(max(self.sizes[lane::LANES]), "little") for lane in lanes]
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
    i = starts.index(offset)
    lane = i % len(mixed)
    whole = int.from_bytes(mixed[lane], "little")
    for start, length in zip(starts[lane :: len(mixed)], sizes[lane :: len(mixed)], strict=False):
        if start != offset:
            whole ^= int.from_bytes(os.pread(fd, length, start), "little")
    return _checked(offset, whole.to_bytes(max(len(mixed[lane]), *sizes), "little")[: sizes[i]])


def _open(payload: bytes) -> tuple[Sequence[int], Sequence[bytes]]:
    try:
        sizes, told = msgspec.msgpack.decode(payload, type=tuple[list[int], bytes | list[bytes]])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"a parity is broken: {error}") from None
    mixed = [told] if isinstance(told, bytes) else told
    if not sizes or not mixed or min(sizes) < HEAD.size or max(sizes) > min(max(map(len, mixed)), MAX_BLOCK_BYTES):
        raise FormatError("a parity is broken")
    return sizes, mixed


def _checked(offset: int, block: bytes) -> tuple[Place, bytes]:
    head = unpack_head(block)
    payload = block[HEAD.size :]
    if head is None or head.size != len(payload) or zlib.crc32(payload) != head.check:
        raise FormatError("more blocks of a run are damaged than can be brought back")
    return Place(offset, head), payload
