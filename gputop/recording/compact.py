"""Codec 2 both ways: frames to small blocks and back, with the references that these build upon."""

from __future__ import annotations

import zlib
from collections import OrderedDict

import msgspec
import zstandard

from gputop.frame import Frame
from gputop.recording.columns.decode import Layouts
from gputop.recording.columns.decode import Table
from gputop.recording.columns.decode import decode
from gputop.recording.columns.decode import open_table
from gputop.recording.columns.decode import reference_of
from gputop.recording.columns.encode import Orders
from gputop.recording.columns.encode import encode
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.layout import Reference
from gputop.recording.columns.layout import tick_ns
from gputop.recording.format import CODEC_COLUMNS
from gputop.recording.format import CODEC_ZSTD
from gputop.recording.format import KIND_FRAMES
from gputop.recording.format import KIND_REFERENCE
from gputop.recording.format import FormatError
from gputop.recording.format import flags_of
from gputop.recording.format import inflate
from gputop.recording.format import pack
from gputop.recording.format import pack_frames
from gputop.recording.format import unpack_frames
from gputop.recording.format import unzstd

LEVEL = 7
KEPT = 4
"""References a reader keeps."""


class Packer:
    """Makes blocks of frames that build upon the reference made last."""

    def __init__(self) -> None:
        self.reference_id = 0
        self._reference = Reference()
        self._orders: Orders = {}
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)

    def refer(self, frames: list[Frame]) -> bytes:
        """A reference block made of ``frames``, which begin with a key frame. It must stand before the blocks packed next."""
        try:
            table = encode(frames, Reference())
        except OverflowError:
            table = encode([], Reference())
        self.reference_id = zlib.crc32(table)
        self._reference, self._orders = reference_of(table), {}
        content = zstandard.ZstdCompressionDict(table, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        content.precompute_compress(level=LEVEL)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=content)
        return pack(KIND_REFERENCE, zstandard.ZstdCompressor(level=LEVEL).compress(table), CODEC_ZSTD, 0, tick_ns(frames[0].t_ns))

    def pack(self, frames: list[Frame]) -> bytes:
        """A block of frames."""
        try:
            table = encode(frames, self._reference, self._orders)
        except OverflowError:  # numbers that no kernel counts to, from a stream that is not ours
            return pack_frames(frames, LEVEL)
        payload = self.reference_id.to_bytes(4, "little") + self._compressor.compress(table)
        return pack(KIND_FRAMES, payload, CODEC_COLUMNS, flags_of(frames), tick_ns(frames[0].t_ns))


class Unpacker:
    """Reads blocks of frames of any codec, given the references they name."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Reference, zstandard.ZstdDecompressor]] = OrderedDict()
        self._known[0] = Reference(), zstandard.ZstdDecompressor()
        self._layouts = Layouts()

    def learn(self, payload: bytes, codec: int) -> int:
        """Take in a reference block; its id. Raises FormatError."""
        table = inflate(payload, codec)
        name = zlib.crc32(table)
        if name in self._known:
            return name
        try:
            reference = reference_of(table)
        except ColumnError as error:
            raise FormatError(f"a reference cannot be decoded: {error}") from None
        content = zstandard.ZstdCompressionDict(table, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        self._known[name] = reference, zstandard.ZstdDecompressor(dict_data=content)
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return name

    def missing(self, payload: bytes, codec: int) -> int:
        """The reference that this block names and that has not been learnt, 0 for none."""
        name = int.from_bytes(payload[:4], "little")
        return name if codec == CODEC_COLUMNS and name not in self._known else 0

    def frames(self, payload: bytes, codec: int) -> list[Frame]:
        """The frames of a block. Raises FormatError."""
        if codec != CODEC_COLUMNS:
            return unpack_frames(payload, codec)
        reference, table = self._open(payload)
        try:
            return decode(table, reference, self._layouts)
        except (ColumnError, msgspec.MsgspecError) as error:
            raise FormatError(f"a block cannot be decoded: {error}") from None

    def table(self, payload: bytes) -> Table:
        """The columns of a block of codec 2. Raises FormatError, and ColumnError as columns are read."""
        reference, table = self._open(payload)
        return open_table(table, reference, self._layouts)

    def _open(self, payload: bytes) -> tuple[Reference, bytes]:
        known = self._known.get(int.from_bytes(payload[:4], "little"))
        if known is None:
            raise FormatError("what this block builds upon is missing")
        return known[0], unzstd(payload[4:], known[1])
