"""The format of a stream, the same on a pipe and in a file.

    stream  = magic block*
    magic   = b"GPUTOP1\\n"                                    8 bytes; the digit is the major version
    block   = kind u8, codec u8, reserved u16 = 0, size u32, check u32, payload        little-endian, 12 bytes + size
    kind    = 1 header   payload: msgpack of `gputop.frame.Header`, always the first block
              2 frames   payload: msgpack array of `gputop.frame.Frame`; the first frame of a chunk is a key frame
              3 index    payload: see `gputop.recording.writer`; only in files, skipped on a pipe
              other      skipped by its size, so that a newer minor version may add kinds
    codec   = 0 plain · 1 zstd
    check   = CRC-32 of the payload as it stands in the stream

Every length is bounded before anything is allocated: `MAX_BLOCK_BYTES` as stored and `MAX_PLAIN_BYTES` once inflated. A
block whose check fails never existed; reading goes on behind it where its size is sane and ends there where it is not.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
import zstandard

from gputop.frame import FORMAT_MAJOR
from gputop.frame import Frame
from gputop.frame import Header

MAGIC = b"GPUTOP1\n"
HEAD = struct.Struct("<BBHII")
KIND_HEADER, KIND_FRAMES, KIND_INDEX = 1, 2, 3
CODEC_PLAIN, CODEC_ZSTD = 0, 1
MAX_BLOCK_BYTES = 32 << 20
MAX_PLAIN_BYTES = 128 << 20


class FormatError(Exception):
    """These bytes are no stream of ours, or of a newer major version; the text says which."""


_encoder = msgspec.msgpack.Encoder()
_frames_decoder = msgspec.msgpack.Decoder(list[Frame])
_header_decoder = msgspec.msgpack.Decoder(Header)


def pack(kind: int, payload: bytes, codec: int = CODEC_PLAIN) -> bytes:
    """One block."""
    return HEAD.pack(kind, codec, 0, len(payload), zlib.crc32(payload)) + payload


def pack_header(header: Header) -> bytes:
    """Magic and header block: what every stream begins with."""
    return MAGIC + pack(KIND_HEADER, _encoder.encode(header))


def pack_frames(frames: list[Frame], level: int | None = None) -> bytes:
    """One block of frames, plain or compressed with zstd at ``level``."""
    payload = _encoder.encode(frames)
    if level is None:
        return pack(KIND_FRAMES, payload)
    return pack(KIND_FRAMES, zstandard.ZstdCompressor(level=level).compress(payload), CODEC_ZSTD)


def unpack_header(payload: bytes) -> Header:
    """The header, or FormatError where it is of a newer major version or broken."""
    try:
        header = _header_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise FormatError(f"the header is broken: {error}") from None
    if header.major > FORMAT_MAJOR:
        raise FormatError(f"made by a newer gputop (format {header.major}, this one reads up to {FORMAT_MAJOR}): update gputop")
    return header


def unpack_frames(payload: bytes, codec: int) -> list[Frame]:
    """The frames of a block whose check held; FormatError where they cannot be decoded."""
    try:
        return _frames_decoder.decode(inflate(payload, codec))
    except msgspec.MsgspecError as error:
        raise FormatError(f"a block cannot be decoded: {error}") from None


def inflate(payload: bytes, codec: int) -> bytes:
    """The plain payload; FormatError for an unknown codec, broken data or more than `MAX_PLAIN_BYTES`."""
    if codec == CODEC_PLAIN:
        return payload
    if codec != CODEC_ZSTD:
        raise FormatError(f"unknown codec {codec}")
    try:
        size = zstandard.frame_content_size(payload)
        if not 0 <= size <= MAX_PLAIN_BYTES:
            raise FormatError("a block claims an impossible size")
        return zstandard.ZstdDecompressor().decompress(payload, max_output_size=MAX_PLAIN_BYTES)
    except zstandard.ZstdError as error:
        raise FormatError(f"a block cannot be inflated: {error}") from None
