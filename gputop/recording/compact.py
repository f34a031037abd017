"""Codec 2 both ways: frames to small blocks and back, with the references and runs that these build upon."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec
import zstandard

from gputop.frame import Frame
from gputop.recording.columns.decode import Layouts
from gputop.recording.columns.decode import Table
from gputop.recording.columns.decode import structs
from gputop.recording.columns.encode import Orders
from gputop.recording.columns.encode import encode
from gputop.recording.columns.layout import ColumnError
from gputop.recording.columns.layout import tick_ns
from gputop.recording.columns.run import Run
from gputop.recording.columns.standing import Standings
from gputop.recording.format import CODEC_COLUMNS
from gputop.recording.format import CODEC_ZSTD
from gputop.recording.format import FLAG_FOLLOWS
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
MOST_IN_RUN = 100
"""Blocks in a run: a reader keeps them all."""
KEPT = 4
"""References a reader keeps."""


class Packer:
    """Makes blocks of frames: the first of a run builds upon the reference made last, each other upon the block before it."""

    def __init__(self) -> None:
        self._orders: Orders = {}
        self._reference: tuple[bytes, Standings] = b"", {}
        self._table = b""
        self._standings: Standings = {}
        self._follows = False

    def refer(self, frames: list[Frame]) -> bytes:
        """A reference block made of ``frames``, which begin with a key frame. It must stand before the blocks packed next."""
        standings: Standings = {}
        try:
            table = encode(frames, standings)
        except OverflowError:
            standings = {}
            table = encode([], standings)
        self._reference = table, standings
        self.begin_run()
        return pack(KIND_REFERENCE, zstandard.ZstdCompressor(level=LEVEL).compress(table), CODEC_ZSTD, 0, tick_ns(frames[0].t_ns))

    def begin_run(self) -> None:
        """The next block builds upon the reference."""
        self._follows = False
        self._table, standings = self._reference
        self._standings = {field: standing.copy() for field, standing in standings.items()}

    def pack(self, frames: list[Frame]) -> bytes:
        """A block of frames."""
        above, flags = self._table, flags_of(frames) | (FLAG_FOLLOWS if self._follows else 0)
        try:
            self._table = encode(frames, self._standings, self._orders)
        except OverflowError:  # numbers that no kernel counts to, from a stream that is not ours
            self.begin_run()
            return pack_frames(frames, LEVEL)
        self._follows = True
        compressor = zstandard.ZstdCompressor(level=LEVEL, dict_data=_dictionary(above))
        payload = _name_of(above).to_bytes(4, "little") + compressor.compress(self._table)
        return pack(KIND_FRAMES, payload, CODEC_COLUMNS, flags, tick_ns(frames[0].t_ns))


@dataclass(slots=True)
class _Reading:
    """A run as far as it has been read."""

    run: Run
    payload: bytes
    """The last block's."""
    table: bytes
    """What that holds, by which the block behind it was compressed."""
    name: int
    """And what that block calls it."""


class Unpacker:
    """Reads blocks of frames of any codec, given what they build upon: a reference, or the block before."""

    def __init__(self) -> None:
        self._references: OrderedDict[int, tuple[Run, bytes]] = OrderedDict({0: (Run(), b"")})
        self._reading: _Reading | None = None
        self._layouts = Layouts()

    def learn(self, payload: bytes, codec: int) -> int:
        """Take in a reference block; its name. Raises FormatError."""
        table = inflate(payload, codec)
        name = _name_of(table)
        if name in self._references:
            return name
        run = Run()
        try:
            run.add(table)
        except ColumnError as error:
            raise FormatError(f"a reference cannot be decoded: {error}") from None
        self._references[name] = run, table
        if len(self._references) > KEPT:
            self._references.popitem(last=False)
        return name

    def missing(self, payload: bytes, codec: int) -> int:
        """The name of what this block builds upon where that has not been read, 0 where it has."""
        name = int.from_bytes(payload[:4], "little")
        known = codec != CODEC_COLUMNS or name in self._references or (self._reading and self._reading.name == name)
        return 0 if known or self._is_last(payload) else name

    def frames(self, payload: bytes, codec: int) -> list[Frame]:
        """The frames of a block. Raises FormatError."""
        if codec != CODEC_COLUMNS:
            return unpack_frames(payload, codec)
        try:
            return structs(self.table(payload))
        except (ColumnError, msgspec.MsgspecError) as error:
            raise FormatError(f"a block cannot be decoded: {error}") from None

    def table(self, payload: bytes) -> Table:
        """The columns of a block of codec 2. Raises FormatError, and ColumnError as columns are read."""
        if self._reading is None or not self._is_last(payload):
            self._reading = self._read(payload)
        return self._reading.run.tables[-1]

    def _is_last(self, payload: bytes) -> bool:
        return self._reading is not None and self._reading.payload == payload

    def _read(self, payload: bytes) -> _Reading:
        name, reading = int.from_bytes(payload[:4], "little"), self._reading
        if reading is not None and reading.name == name and len(reading.run.tables) < MOST_IN_RUN:
            run, above = reading.run, reading.table
        elif name in self._references:
            base, above = self._references[name]
            run = Run(base)
        else:
            raise FormatError("what this block builds upon is missing")
        table = unzstd(payload[4:], zstandard.ZstdDecompressor(dict_data=_dictionary(above)))
        run.add(table, self._layouts)
        return _Reading(run, payload, table, _name_of(table))


def _name_of(table: bytes) -> int:
    """By which blocks say that they build upon it; 0 for no table."""
    return zlib.crc32(table)


def _dictionary(table: bytes) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(table, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if table else None
