"""Codecs 2 and 3: frames to small blocks and back, with the references and runs that these build upon. 3 is what is written."""

from __future__ import annotations

import struct
import zlib
from collections import OrderedDict

import zstandard

from gputop.model.frame import Frame
from gputop.recording.budget import Budget
from gputop.recording.columns.context import Layouts
from gputop.recording.columns.decode import Table, structs
from gputop.recording.columns.encode import Orders, encode
from gputop.recording.columns.layout import ColumnError, tick_ns
from gputop.recording.columns.run import Run
from gputop.recording.columns.standing import Standings
from gputop.recording.format import (
    BROKEN,
    CODEC_COLUMNS,
    CODEC_PLAIN,
    CODEC_RUN,
    CODEC_ZSTD,
    COLUMNS,
    FLAG_FOLLOWS,
    KIND_FRAMES,
    KIND_REFERENCE,
    FormatError,
    flags_of,
    inflate,
    pack,
    pack_frames,
    plain_bytes,
    unpack_frames,
    unzstd,
)
from gputop.recording.sound import check_frames

LEVEL = 7
"""Of references, and of blocks that are no columns."""
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(10, window_log=19, chain_log=17, hash_log=17, search_log=3, min_match=5)
"""Of runs: the window holds half a minute of few processes, or some seconds of many."""
_MAX_WINDOW_BYTES = 8 << 20
MOST_IN_RUN = 100
"""Blocks in a run: a reader keeps them all."""
KEPT = 4
"""References a reader keeps."""
_ABOVE = struct.Struct("<II")
"""What a payload of codec 3 begins with: the name of the table that it builds upon, and the length of its own."""


class Packer:
    """Makes blocks of frames: the first of a run builds upon the reference made last, each other upon the block before it."""

    def __init__(self) -> None:
        self._orders: Orders = {}
        self._reference: tuple[bytes, Standings] = b"", {}
        self.begin_run()

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
        table, standings = self._reference
        self._standings = {field: standing.copy() for field, standing in standings.items()}
        self._above, self._follows = _name_of(table), False
        self._stream = zstandard.ZstdCompressor(compression_params=_PARAMETERS, dict_data=_dictionary(table)).compressobj()

    def pack(self, frames: list[Frame]) -> bytes:
        """A block of frames."""
        try:
            table = encode(frames, self._standings, self._orders)
        except OverflowError:  # numbers that no kernel counts to, from a stream that is not ours
            self.begin_run()
            return pack_frames(frames, LEVEL)
        compressed = self._stream.compress(table) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        payload = _ABOVE.pack(self._above, len(table)) + compressed
        flags = flags_of(frames) | (FLAG_FOLLOWS if self._follows else 0)
        self._above, self._follows = _name_of(table), True
        return pack(KIND_FRAMES, payload, CODEC_RUN, flags, tick_ns(frames[0].t_ns))


class _Parts:
    """The file that a run's zstd stream is read from, a block at a time."""

    def __init__(self) -> None:
        self.data = b""

    def read(self, size: int) -> bytes:
        """The next bytes."""
        part, self.data = self.data[:size], self.data[size:]
        return part


class _Reading:
    """A run as far as it has been read."""

    def __init__(self, base: Run, dictionary: bytes, name: int) -> None:
        self.run = Run(base)
        self.table: Table | None = None
        self.payload = b""
        """The last block's."""
        self.name = name
        """Of what the next block builds upon."""
        self._parts = _Parts()
        self._stream = _decompressor(dictionary).stream_reader(self._parts)  # type: ignore[arg-type]

    def read(self, payload: bytes, layouts: Layouts, budget: Budget) -> Table:
        """The next block's table. Raises FormatError, ColumnError."""
        size = _ABOVE.unpack_from(payload)[1]
        if len(self.run) >= MOST_IN_RUN:
            raise FormatError("a run has too many blocks")
        budget.charge(size)
        self._parts.data = payload[_ABOVE.size :]
        try:
            table = self._stream.read(size)
        except zstandard.ZstdError as error:
            raise FormatError(f"a block cannot be inflated: {error}") from None
        if len(table) != size:
            raise FormatError("a block is shorter than it says")
        self.table = self.run.add(table, layouts)
        self.payload, self.name = payload, _name_of(table)
        return self.table


class Unpacker:
    """Reads blocks of frames of any codec, given what they build upon: a reference, or the block before."""

    def __init__(self) -> None:
        self._references: OrderedDict[int, tuple[Run, bytes]] = OrderedDict({0: (Run(), b"")})
        self._reading: _Reading | None = None
        self._layouts = Layouts()
        self.budget = Budget()

    def learn(self, payload: bytes, codec: int) -> int:
        """Take in a reference block; its name. Raises FormatError."""
        table = self._inflated(payload, codec)
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
        known = codec not in COLUMNS or name in self._references or self._continues(payload, codec)
        return 0 if known else name

    def frames(self, payload: bytes, codec: int) -> list[Frame]:
        """The frames of a block. Raises FormatError."""
        if codec not in COLUMNS:
            return unpack_frames(self._inflated(payload, codec), CODEC_PLAIN)
        try:
            return check_frames(structs(self.table(payload, codec)))
        except BROKEN as error:
            raise FormatError(f"a block cannot be decoded: {error}") from None

    def table(self, payload: bytes, codec: int) -> Table:
        """The columns of a block of codec 2 or 3. Raises FormatError; reading a column may raise ColumnError."""
        try:
            return self._table(payload, codec)
        except ColumnError as error:
            raise FormatError(f"a block cannot be decoded: {error}") from None

    def _table(self, payload: bytes, codec: int) -> Table:
        reading = self._reading
        if reading is not None and reading.table is not None and reading.payload == payload:
            return reading.table
        if codec == CODEC_COLUMNS:
            base, dictionary = self._base(payload)
            self.budget.charge(plain_bytes(payload[4:]))
            return Run(base).add(unzstd(payload[4:], _decompressor(dictionary)), self._layouts)
        if len(payload) < _ABOVE.size:
            raise FormatError("a block is empty")
        if reading is None or not self._continues(payload, codec):
            reading = _Reading(*self._base(payload), _ABOVE.unpack_from(payload)[0])
        self._reading = None
        opened = reading.read(payload, self._layouts, self.budget)
        self._reading = reading
        return opened

    def _inflated(self, payload: bytes, codec: int) -> bytes:
        if codec == CODEC_ZSTD:
            self.budget.charge(plain_bytes(payload))
        return inflate(payload, codec)

    def _continues(self, payload: bytes, codec: int) -> bool:
        """Whether it is the block read last, or the one behind that."""
        reading = self._reading
        if reading is None or codec != CODEC_RUN:
            return False
        return reading.payload == payload or payload[:4] == reading.name.to_bytes(4, "little")

    def _base(self, payload: bytes) -> tuple[Run, bytes]:
        try:
            return self._references[int.from_bytes(payload[:4], "little")]
        except KeyError:
            raise FormatError("what this block builds upon is missing") from None


def _name_of(table: bytes) -> int:
    """By which blocks say that they build upon it; 0 for no table."""
    return zlib.crc32(table)


def _dictionary(table: bytes) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(table, dict_type=zstandard.DICT_TYPE_RAWCONTENT) if table else None


def _decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_dictionary(dictionary), max_window_size=_MAX_WINDOW_BYTES)
