"""The format of a stream, the same on a pipe and in a file.

    stream  = magic block*
    magic   = b"GPUTOP1\\n"                       8 bytes; the digit is the major version
    block   = head payload                        28 bytes + size, little-endian
    head    = sync 4s, kind u8, codec u8, flags u16, size u32, t_ns u64, check u32, head_check u32
    sync    = b"\\x9dGP\\n"                         where to look for the next block behind a broken one
    kind    = 1 header   msgpack of `gputop.model.frame.Header`; first in every stream, restated in files, and when a clock has jumped
              2 frames   some `gputop.model.frame.Frame`, see codec
              3 index    where chunks begin, see `gputop.recording.index`; in files only
              4 reference   what blocks of codecs 2 and 3 build upon, again behind the first run that does, see `gputop.recording.columns`
              5 parity   as it was; skipped
              6 findings   what the diagnosis said while it was recorded, see `gputop.session.findings`; in files only
              7 parity   mends what stands before it, see `gputop.recording.parity`; in files only
              8 end      the collector ended by itself: what ends without it (or, in files, an index) was cut short
              other      skipped by its size, so that a newer minor version may add kinds
    codec   = 0 msgpack · 1 msgpack in zstd · 2 columns in zstd, which is read, but no more written
              3 columns, building upon those before, see `gputop.recording.columns`
    flags   = 1 the first frame is a key frame: a chunk begins here · 2 a marker was dropped in it
              4 it builds upon the block of frames right before it, and belongs to the same run
    t_ns    = CLOCK_MONOTONIC of the first frame; of the block's making for other kinds
    check   = CRC-32 of the payload as it stands in the stream; head_check: CRC-32 of the 24 bytes before it

Blocks of codec 3 stand in runs of up to a minute, each building upon the one before it; every other can be read by itself. One
whose check fails never existed, unless the parity of its run brings it back; reading goes on behind it, at its end where its
head is sound, at the next sync otherwise. Every length is bounded before anything is allocated.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import zstandard

from gputop.model.frame import FORMAT_MAJOR, Frame, Header
from gputop.recording.sound import check_frames, check_header
from gputop.system.errors import UserError

if TYPE_CHECKING:
    from gputop.recording.compact import Unpacker
    from gputop.recording.restated import Known

MAGIC = b"GPUTOP1\n"
SYNC = b"\x9dGP\n"
HEAD = struct.Struct("<4sBBHIQII")
KIND_HEADER, KIND_FRAMES, KIND_INDEX, KIND_REFERENCE, KIND_FINDINGS, KIND_PARITY, KIND_END = 1, 2, 3, 4, 6, 7, 8
CODEC_PLAIN, CODEC_ZSTD, CODEC_COLUMNS, CODEC_RUN = 0, 1, 2, 3
COLUMNS = (CODEC_COLUMNS, CODEC_RUN)
ENDS = (KIND_INDEX, KIND_END)
"""Kinds with which a writer ends: a stream that ends with another one was cut short."""
FLAG_KEY, FLAG_MARK, FLAG_FOLLOWS = 1, 2, 4
MAX_BLOCK_BYTES = 16 << 20
"""As stored, and once inflated."""
MOST_FRAMES = 4096  # of a block; one of ten seconds at the fastest interval has a thousand
BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)  # what comes of decoding, and of `gputop.recording.sound`
_MAX_NOISE_BYTES = 64 << 10
"""What a login shell may print before the stream begins."""
_VERSION = re.compile(rb"GPUTOP(\d{1,9})\n")
"""The magic of any major version."""
_UNPACKERS = {b"\x1f\x8b": "gzip -d", b"\x28\xb5\x2f\xfd": "zstd -d", b"\xfd7zXZ": "xz -d", b"BZh": "bzip2 -d"}


class FormatError(UserError):
    """These bytes are no stream of ours, or of a newer major version; the text says which."""


class NewerError(FormatError):
    """A stream of a newer major version."""


class _Version(msgspec.Struct):
    """What is read of any header, whatever else has become of it."""

    major: int = FORMAT_MAJOR


class Head(NamedTuple):
    """A block's head whose check held."""

    kind: int
    codec: int
    flags: int
    size: int
    t_ns: int
    check: int


_ONE = b"\x91"
"""The head of a msgpack array of one: each frame of a live stream is a block."""
_encoder = msgspec.msgpack.Encoder()
_frames_decoder = msgspec.msgpack.Decoder(Annotated[list[Frame], msgspec.Meta(max_length=MOST_FRAMES)])
_header_decoder = msgspec.msgpack.Decoder(Header)


def pack(kind: int, payload: bytes, codec: int = CODEC_PLAIN, flags: int = 0, t_ns: int = 0) -> bytes:
    """One block."""
    head = HEAD.pack(SYNC, kind, codec, flags, len(payload), t_ns, zlib.crc32(payload), 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little") + payload


def pack_header(header: Header) -> bytes:
    """Magic and header block: what every stream begins with."""
    return MAGIC + pack(KIND_HEADER, _encoder.encode(header), t_ns=header.t_ns)


def pack_frames(frames: list[Frame], level: int | None = None) -> bytes:
    """One block of frames (at least one), as msgpack: plain, or compressed with zstd at ``level``."""
    payload = _encoder.encode(frames)
    if level is None:
        return pack(KIND_FRAMES, payload, CODEC_PLAIN, flags_of(frames), frames[0].t_ns)
    return pack(KIND_FRAMES, zstandard.ZstdCompressor(level=level).compress(payload), CODEC_ZSTD, flags_of(frames), frames[0].t_ns)


def pack_end(t_ns: int) -> bytes:
    """With what a collector ends its stream, behind a frame of ``t_ns``."""
    return pack(KIND_END, b"", t_ns=t_ns)


def flags_of(frames: list[Frame]) -> int:
    """What the head of a block of ``frames`` says of them."""
    return (FLAG_KEY if frames[0].key else 0) | (FLAG_MARK if any(frame.marks for frame in frames) else 0)


def unpack_head(data: bytes | bytearray | memoryview, offset: int = 0) -> Head | None:
    """The head at ``offset``, None where none stands there whole and sound."""
    if len(data) - offset < HEAD.size:
        return None
    sync, kind, codec, flags, size, t_ns, check, head_check = HEAD.unpack_from(data, offset)
    if sync != SYNC or size > MAX_BLOCK_BYTES or zlib.crc32(data[offset : offset + HEAD.size - 4]) != head_check:
        return None
    return Head(kind, codec, flags, size, t_ns, check)


def unpack_header(payload: bytes) -> Header:
    """The header, or FormatError where it is of a newer major version or broken."""
    try:
        header = _header_decoder.decode(payload)
        check_header(header)
    except BROKEN as error:
        raise _newer(_major_of(payload)) or FormatError(f"the header is broken: {error}") from None
    if newer := _newer(header.major):
        raise newer
    return header


def _major_of(payload: bytes) -> int:
    try:
        return msgspec.msgpack.decode(payload, type=_Version).major
    except BROKEN:
        return FORMAT_MAJOR


def _newer(major: int) -> NewerError | None:
    """The refusal, where that is a newer one than ours."""
    text = f"made by a newer gputop (format {major}, this one reads up to {FORMAT_MAJOR}): update gputop"
    return NewerError(text) if major > FORMAT_MAJOR else None


def newer_by_magic(start: bytes | bytearray) -> NewerError | None:
    """The refusal of what begins so and has no header that we know, where it is of a newer major version."""
    found = _VERSION.search(start)
    return _newer(int(found[1])) if found else None


def check_unpacked(start: bytes) -> None:
    """FormatError where a file begins like a compressed one: of what does not compress, blocks would be found in it."""
    unpacker = next((tool for magic, tool in _UNPACKERS.items() if start.startswith(magic)), None)
    if unpacker:
        raise FormatError(f"it is compressed: unpack it first ({unpacker})")


def unpack_frames(payload: bytes, codec: int, known: Known | None = None) -> list[Frame]:
    """The frames of a block of codec 0 or 1 whose check held; FormatError where they cannot be decoded. What of ``known`` they say again
    is that object."""
    try:
        plain = inflate(payload, codec)
        infos, procs = known() if known is not None else ({}, {})
        if not infos:
            return check_frames(_frames_decoder.decode(plain))
        from gputop.recording.restated import decode_restated

        return check_frames(decode_restated(plain, infos, procs))
    except BROKEN as error:
        raise FormatError(f"a block cannot be decoded: {error}") from None


def inflate(payload: bytes, codec: int) -> bytes:
    """The plain payload of codec 0 or 1; FormatError for another codec, or as `unzstd`."""
    if codec == CODEC_PLAIN:
        return payload
    if codec != CODEC_ZSTD:
        raise FormatError(f"unknown codec {codec}")
    return unzstd(payload, zstandard.ZstdDecompressor())


def unzstd(payload: bytes, decompressor: zstandard.ZstdDecompressor) -> bytes:
    """What was compressed; FormatError for broken data or more than `MAX_BLOCK_BYTES`."""
    plain_bytes(payload)
    try:
        return decompressor.decompress(payload, max_output_size=MAX_BLOCK_BYTES)
    except zstandard.ZstdError as error:
        raise FormatError(f"a block cannot be inflated: {error}") from None


def plain_bytes(payload: bytes) -> int:
    """How long what was compressed says that it was; FormatError where it does not, or more than `MAX_BLOCK_BYTES`."""
    try:
        size: int = zstandard.frame_content_size(payload)
    except zstandard.ZstdError as error:
        raise FormatError(f"a block cannot be inflated: {error}") from None
    if not 0 <= size <= MAX_BLOCK_BYTES:
        raise FormatError("a block claims an impossible size")
    return size


class Decoder:
    """Turns a stream's bytes, in pieces of any size, into its header and frames.

    What stands before the first block, such as the greeting of a login shell, is passed over.
    """

    def __init__(self, known: Known | None = None) -> None:
        """``known`` tells what stands where the frames go: what a key frame says of it again is then that object."""
        self.header: Header | None = None
        self.lost_bytes = 0
        self.ended = False
        """Whether its writer has said that it ends here."""
        self._known = known
        self._noise = bytearray()
        self._buffer = bytearray()
        self._begun = False
        self._unpacker: Unpacker | None = None
        self._fed_bytes = 0

    @property
    def problem(self) -> str:
        """What could not be read so far, empty if nothing was lost."""
        if self.lost_bytes:
            return f"{self.lost_bytes} bytes of the stream were damaged or cut off, and are left out"
        return "the stream's header is missing" if self._begun and self.header is None else ""

    def feed(self, data: bytes) -> list[Header | Frame]:
        """What ``data`` completes: the header, then frames, and the header anew where a clock has jumped. FormatError where this is no
        stream, or a newer one."""
        self._buffer += data
        self._fed_bytes += len(data)
        out: list[Header | Frame] = []
        while (head := self._next_head()) is not None and len(self._buffer) >= HEAD.size + head.size:
            payload = bytes(self._buffer[HEAD.size : HEAD.size + head.size])
            del self._buffer[: HEAD.size + head.size]
            out += self._open(head, payload)
        return out

    def finish(self) -> None:
        """The stream has ended: count what was cut off. FormatError where it never began."""
        if not self._begun:
            start = bytes(self._noise + self._buffer)
            words = start[:60].decode("utf-8", "replace").strip()
            said = f"this is no gputop stream, it begins with {words!r}" if words else "the stream is empty"
            raise newer_by_magic(start) or FormatError(said)
        self.lost_bytes += len(self._buffer)
        self._buffer.clear()

    def _next_head(self) -> Head | None:
        """The next sound head, moved to the buffer's start; None while there is none."""
        while len(self._buffer) >= HEAD.size:
            head = unpack_head(self._buffer)
            if head is not None:
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
                raise newer_by_magic(self._noise) or FormatError("this is no gputop stream")
        del self._buffer[:count]

    def _open(self, head: Head, payload: bytes) -> list[Header | Frame]:
        """What a block holds, nothing where it is damaged."""
        if zlib.crc32(payload) == head.check:
            self.ended = head.kind in ENDS
            try:
                return self._header_anew(payload) if head.kind == KIND_HEADER else self._frames(head, payload)
            except NewerError:
                raise
            except FormatError:
                if head.kind == KIND_HEADER and self.header is None:
                    raise
        self.lost_bytes += HEAD.size + head.size
        return []

    def _header_anew(self, payload: bytes) -> list[Header | Frame]:
        """Restated in files, it says nothing new; one of another stream is none of this."""
        header = unpack_header(payload)
        if header == self.header or (self.header is not None and not header.repeats(self.header)):
            return []
        self.header = header
        return [header]

    def _frames(self, head: Head, payload: bytes) -> list[Header | Frame]:
        if head.kind == KIND_FRAMES and head.codec == CODEC_PLAIN:
            restates = self.header is not None and head.flags & FLAG_KEY
            frames = unpack_frames(payload, head.codec, self._known if restates else None)
            if payload[:1] == _ONE:
                frames[0].came_as(payload[1:])
            return [*frames]
        if head.kind not in (KIND_FRAMES, KIND_REFERENCE):
            return []
        if self._unpacker is None:
            # Only recordings need it, and the live screen is to start fast.
            from gputop.recording.compact import Unpacker

            self._unpacker = Unpacker()
        self._unpacker.budget.stored_bytes = self._fed_bytes
        if head.kind == KIND_REFERENCE:
            self._unpacker.learn(payload, head.codec)
            return []
        return [*self._unpacker.frames(payload, head.codec)]
