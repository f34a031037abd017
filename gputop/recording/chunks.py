"""Frames to the pieces of chunks and back (the format stands in `gputop.recording.format`)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Annotated

import msgspec
import zstandard

from gputop.model.board import MOST_ENTRIES, like
from gputop.model.frame import Frame, Header, ProcInfo, ProcSample
from gputop.model.stream import BOUNDED
from gputop.recording.format import (
    ENDS,
    FLAG_KEY,
    FLAG_PLAIN,
    HEAD,
    KIND_FRAMES,
    KIND_HEADER,
    MAX_BLOCK_BYTES,
    SYNC,
    TICKS,
    BlockHead,
    FormatError,
    VersionError,
    check_beginning,
    flags_of,
    pack,
    pack_frames,
    unpack_head,
    unpack_header,
)
from gputop.recording.sound import check_frames
from gputop.system.decoding import BROKEN

# Bytes of columns; a chunk has 0.5 MB at most. Tables of this size take 1.1 MB a tier instead of 5.6, and 0.2 % more bytes.
PARAMETERS = zstandard.ZstdCompressionParameters.from_level(7, window_log=19, hash_log=17, chain_log=16)
ALONE_LEVEL = 3  # of msgpack
MOST_FRAMES = 4096  # in a piece; ten seconds at the fastest interval have a thousand
FREE_BYTES = 2 << 20  # that a stream may inflate to however small it is: seconds of a large machine
MOST_RATIO = 400  # inflated bytes per stored byte beyond that; measured: 130 of a thousand processes that all sleep
_MAX_WINDOW_BYTES = 8 << 20
_MAX_NOISE_BYTES = 64 << 10  # that a login shell may print before the stream begins
_LINK = struct.Struct("<II")  # CRC-32 of the piece before, 0 for the first of a zstd stream; inflated size in bytes
_ONE = b"\x91"  # head of a msgpack array of one
_ARRAYS = frozenset(bytes((head,)) for head in (*range(0x90, 0xA0), 0xDC, 0xDD))  # heads of msgpack arrays; columns are a map
_decode = msgspec.msgpack.Decoder(Annotated[list[Frame], msgspec.Meta(max_length=MOST_FRAMES)]).decode


class _KeyFrame(Frame):
    """A frame whose processes are not decoded yet."""

    procs: Annotated[list[msgspec.Raw], BOUNDED] = []  # type: ignore[assignment]
    infos: Annotated[list[msgspec.Raw], BOUNDED] = []  # type: ignore[assignment]


_decode_around = msgspec.msgpack.Decoder(Annotated[list[_KeyFrame], msgspec.Meta(max_length=MOST_FRAMES)]).decode
_decode_proc = msgspec.msgpack.Decoder(ProcSample).decode
_decode_info = msgspec.msgpack.Decoder(ProcInfo).decode
_OTHERS = tuple(name for name in Frame.__struct_fields__ if name not in ("procs", "infos"))


class Packer:
    """Makes the pieces of one tier. A piece that starts with a key frame begins a chunk; the others continue it."""

    def __init__(self, tier: int = TICKS) -> None:
        self._tier = tier
        self._compressor = zstandard.ZstdCompressor(compression_params=PARAMETERS)
        self.begin()

    def begin(self) -> None:
        """Let the next piece begin a zstd stream."""
        from gputop.recording.columns import ColumnEncoder  # the live screen packs none

        self._last_crc = 0
        self._encoder = ColumnEncoder()
        self._stream = self._compressor.compressobj()

    def pack(self, frames: list[Frame]) -> bytes:
        """One piece, as a block."""
        flags, t_ns = flags_of(frames), frames[0].t_ns
        if flags & FLAG_KEY:
            self.begin()
        try:
            plain = self._encoder.encode(frames)
        except OverflowError:  # numbers beyond 64 bits, from a stream that is not ours
            self.begin()
            return pack_frames(frames)
        compressed = self._stream.compress(plain) + self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        payload = _LINK.pack(self._last_crc, len(plain)) + compressed
        self._last_crc = zlib.crc32(payload)
        return pack(KIND_FRAMES, payload, tier=self._tier, flags=flags, t_ns=t_ns)


def pack_alone(plain: bytes | bytearray, flags: int, t_ns: int) -> bytes:
    """A piece of frames that are msgpack already, and that needs no other piece to be read: twice the bytes for a fifth of the CPU."""
    payload = _LINK.pack(0, len(plain)) + zstandard.ZstdCompressor(level=ALONE_LEVEL).compress(plain)
    return pack(KIND_FRAMES, payload, flags=flags, t_ns=t_ns)


class _CompressedFile:
    """The file that a zstd stream is read from, one piece at a time."""

    def __init__(self) -> None:
        self.data = b""

    def read(self, size: int) -> bytes:
        """The next bytes."""
        part, self.data = self.data[:size], self.data[size:]
        return part


class Told:
    """What a stream has told last of each process.

    A key frame tells it again, of a thousand processes mostly without a change. It is decoded process by process, and what is equal is the
    object that was there: a second one of each, for a moment, would leave 2 MB of holes in the memory.
    """

    def __init__(self) -> None:
        self._procs: dict[int, ProcSample] = {}
        self._infos: dict[int, ProcInfo] = {}

    def decode(self, payload: bytes) -> list[Frame]:
        """The frames of a block that has a key frame."""
        return [self._whole(frame) for frame in _decode_around(payload)]

    def note(self, frame: Frame) -> None:
        """Take in a frame; its identities share their values with their parents' from here on."""
        if frame.key or max(len(self._procs), len(self._infos)) > MOST_ENTRIES:
            self._procs, self._infos = {}, {}
        for pid in frame.gone:
            self._procs.pop(pid, None)
            self._infos.pop(pid, None)
        self._procs.update((one.pid, one) for one in frame.procs)
        self._infos.update((one.pid, one) for one in frame.infos)
        for at, one in enumerate(frame.infos):
            frame.infos[at] = self._infos[one.pid] = like(one, self._infos.get(one.ppid))

    def _whole(self, frame: _KeyFrame) -> Frame:
        others = {name: getattr(frame, name) for name in _OTHERS}
        return Frame(procs=list(map(self._proc, frame.procs)), infos=list(map(self._info, frame.infos)), **others)

    def _proc(self, packed: msgspec.Raw) -> ProcSample:
        new = _decode_proc(packed)
        stood = self._procs.get(new.pid)
        return stood if stood is not None and stood == new else new

    def _info(self, packed: msgspec.Raw) -> ProcInfo:
        new = _decode_info(packed)
        stood = self._infos.get(new.pid)
        return stood if stood is not None and stood == new else new


class Unpacker:
    """Reads the pieces of one tier; with ``parts`` only these tables of frames, if they come as columns. Its memory stays in proportion to
    what it was given."""

    def __init__(self, parts: tuple[str, ...] | None = None, most_bytes: int = MAX_BLOCK_BYTES, told: Told | None = None) -> None:
        """``most_bytes``: of a piece, inflated; ``told``: for plain pieces of one stream, one after the other."""
        self._parts, self._told = parts, told
        self._most_bytes = most_bytes
        self._check = 0  # of the last piece that was read
        self._stored_bytes = self._inflated_bytes = 0

    def lacks(self, payload: bytes, head: BlockHead) -> bool:
        """True if another piece than the last one must be read before this one."""
        return not head.flags & FLAG_PLAIN and int.from_bytes(payload[:4], "little") not in (0, self._check)

    def frames(self, payload: bytes, head: BlockHead) -> list[Frame]:
        """Frames of a sound piece. FormatError if they cannot be decoded, or the piece before it was not read."""
        try:
            if head.flags & FLAG_PLAIN:
                told = self._told
                frames = check_frames(_decode(payload) if told is None or not head.flags & FLAG_KEY else told.decode(payload))
                if told is not None:
                    for frame in frames:
                        told.note(frame)
                if payload[:1] == _ONE:
                    frames[0].came_as(payload[1:])
                return frames
            plain = self._inflate(payload)
            self._check = 0
            frames = check_frames(_decode(plain) if plain[:1] in _ARRAYS else self._decoder.decode(plain))
        except BROKEN as error:
            raise FormatError(f"a block cannot be decoded: {error}") from None
        self._check = head.check
        return frames

    def _inflate(self, payload: bytes) -> bytes:
        if len(payload) < _LINK.size:
            raise FormatError("a block is empty")
        crc_before, size = _LINK.unpack_from(payload)
        if crc_before not in (0, self._check):
            raise FormatError("the block before is missing")
        self._check_ratio(len(payload) + HEAD.size, size)
        if not crc_before:
            from gputop.recording.columns import ColumnDecoder as ColumnDecoder  # a pipe has none

            self._source, self._decoder = _CompressedFile(), ColumnDecoder(self._parts)
            self._stream = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(self._source)  # type: ignore[arg-type]
        self._source.data = payload[_LINK.size :]
        try:
            plain = self._stream.read(size)
        except zstandard.ZstdError as error:
            self._check = 0
            raise FormatError(f"a block cannot be inflated: {error}") from None
        if len(plain) != size:
            self._check = 0
            raise FormatError("a block is shorter than its head states")
        return plain

    def _check_ratio(self, stored_bytes: int, inflated_bytes: int) -> None:
        """Raise FormatError if the stream so far inflates to more than its size allows (`MOST_RATIO`): it would exhaust the memory."""
        stored_bytes += self._stored_bytes
        if inflated_bytes > self._most_bytes or self._inflated_bytes + inflated_bytes > FREE_BYTES + MOST_RATIO * stored_bytes:
            raise FormatError("a block claims more than its stream may")  # and lends the blocks behind it nothing
        self._stored_bytes = stored_bytes
        self._inflated_bytes += inflated_bytes


class Decoder:
    """Turns a stream's bytes, in parts of any size, into its header and the frames of every tick.

    Text before the first block, such as a login shell's greeting, is passed over. ``other`` gets the sound blocks of other kinds;
    blocks of more than ``most_bytes``, stored or inflated, count as damage. A block that no caller wants is passed over by its head: it is
    neither kept nor opened.
    """

    def __init__(
        self, other: Callable[[BlockHead, bytes], None] | None = None, most_bytes: int = MAX_BLOCK_BYTES,
        wants: Callable[[BlockHead], bool] | None = None,
    ) -> None:  # fmt: skip
        """``wants``: whether a block is to be opened; headers and ends always are. None: all that can be."""
        self._other = other
        self._most_bytes = most_bytes
        self._wants = wants
        self._unwanted_bytes = 0  # that are still to come of a block that no caller wants
        self.header: Header | None = None
        self.lost_bytes = 0
        self.ended = False  # whether the last block was the one with which a writer ends
        self._noise = bytearray()
        self._buffer = bytearray()
        self._begun = False
        self._unpacker = Unpacker(most_bytes=most_bytes, told=Told())

    @property
    def problem(self) -> str:
        """Losses so far, as text; empty if nothing is lost."""
        if self.lost_bytes:
            return f"{self.lost_bytes} bytes of the stream were damaged or cut off, and are left out"
        return "the stream's header is missing" if self._begun and self.header is None else ""

    def feed(self, data: bytes) -> list[Header | Frame]:
        """Items that ``data`` completes: the header, then frames, and the header again after a jump of a clock. FormatError if this is no
        stream, or one of another version."""
        self.push(data)
        out: list[Header | Frame] = []
        while (items := self.next()) is not None:
            out += items
        return out

    def push(self, data: bytes) -> None:
        """Take the next bytes; `next` opens them."""
        self._buffer += data

    def next(self) -> list[Header | Frame] | None:
        """Items of the next block; None if no block is complete. FormatError as `feed`."""
        if self._unwanted_bytes:
            passed = min(self._unwanted_bytes, len(self._buffer))
            del self._buffer[:passed]
            self._unwanted_bytes -= passed
        head = self._next_head()
        if head is None:
            return None
        if not self._can_open(head):
            del self._buffer[: HEAD.size]
            self._unwanted_bytes, self.ended = head.size, False
            return []
        if len(self._buffer) < HEAD.size + head.size:
            return None
        payload = bytes(self._buffer[HEAD.size : HEAD.size + head.size])
        del self._buffer[: HEAD.size + head.size]
        return self._open(head, payload)

    def _can_open(self, head: BlockHead) -> bool:
        if head.kind == KIND_HEADER or head.kind in ENDS:
            return True
        if head.kind == KIND_FRAMES:
            return head.tier == TICKS and (self._wants is None or self._wants(head))
        return self._other is not None and (self._wants is None or self._wants(head))

    def finish(self) -> None:
        """Count what was cut off at the stream's end. FormatError if it never began."""
        if not self._begun:
            start = bytes(self._noise + self._buffer)
            check_beginning(start)
            words = start[:60].decode("utf-8", "replace").strip()
            raise FormatError(f"this is no gputop stream, it begins with {words!r}" if words else "the stream is empty")
        self.lost_bytes += len(self._buffer)
        self._buffer.clear()
        self._unwanted_bytes = 0

    def _next_head(self) -> BlockHead | None:
        """The next sound head, moved to the buffer's start; None if no head has come yet."""
        while len(self._buffer) >= HEAD.size:
            head = unpack_head(self._buffer)
            if head is not None and head.size <= self._most_bytes:
                self._begun = True
                return head
            found = self._buffer.find(SYNC, 1)
            self._drop(found if found > 0 else len(self._buffer) - len(SYNC) + 1)
        return None

    def _drop(self, count: int) -> None:
        if self._begun:
            self.lost_bytes += count
        else:
            self._noise += self._buffer[:count]
            if len(self._noise) > _MAX_NOISE_BYTES:
                check_beginning(self._noise)
                raise FormatError("this is no gputop stream")
        del self._buffer[:count]

    def _open(self, head: BlockHead, payload: bytes) -> list[Header | Frame]:
        """The content of a block, nothing if it is damaged."""
        if zlib.crc32(payload) == head.check:
            self.ended = head.kind in ENDS
            try:
                if head.kind == KIND_HEADER:
                    return self._take_header(payload)
                if head.kind == KIND_FRAMES:
                    return [*self._unpacker.frames(payload, head)]
                if self._other is not None:
                    self._other(head, payload)
                return []
            except VersionError:
                raise
            except FormatError:
                if head.kind == KIND_HEADER and self.header is None:
                    raise
        self.lost_bytes += HEAD.size + head.size
        return []

    def _take_header(self, payload: bytes) -> list[Header | Frame]:
        """Take a header. A repeated one has nothing new; one of another stream is ignored."""
        header = unpack_header(payload)
        if header == self.header or (self.header is not None and not header.repeats(self.header)):
            return []
        self.header = header
        return [header]
