"""Where chunks begin: written into a recording every few minutes and at its end, so that a long file opens at once.

Each index block tells of the chunks since the one before and where that stands, so that the last one found leads to all. The
index only saves time: without it, or where it is damaged, the heads of all blocks are looked at.
"""

from __future__ import annotations

import msgspec

from gputop.model.frame import Mark
from gputop.recording.format import BROKEN, FormatError


class Index(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of an index block, as msgpack."""

    previous: int = 0
    """Offset of the index block before, 0 for none."""
    chunks: list[tuple[int, int]] = []
    """(t_ns of the key frame, offset of its block) of each chunk."""
    references: list[int] = []
    """Offset of each copy of a reference."""
    marks: list[Mark] = []
    end_ns: int = 0
    """Time of the last frame."""
    findings: int = 0
    """Offset of the findings of all before, 0 for none; in the last index alone."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Index)


def pack_index(index: Index) -> bytes:
    """The payload of an index block."""
    return _encoder.encode(index)


def unpack_index(payload: bytes) -> Index:
    """An index; FormatError where it is none."""
    try:
        return _decoder.decode(payload)
    except BROKEN as error:
        raise FormatError(f"the index is broken: {error}") from None
