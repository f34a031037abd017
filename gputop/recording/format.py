"""The format of a stream, the same on a pipe and in a file.

    stream  = magic block*
    magic   = b"GPUTOP2\\n"                        8 bytes; the digit is the major version
    block   = head payload                        28 bytes + size, little-endian
    head    = sync 4s, kind u8, tier u8, flags u16, size u32, t_ns u64, check u32, head_check u32
    sync    = b"\\x9dGP\\n"                         where to look for the next block behind a damaged one
    kind    = 1 header   msgpack of `gputop.model.frame.Header`; first in every stream, repeated in files and when a clock has jumped
              2 frames   a *piece*: some `gputop.model.frame.Frame` as msgpack, see flags
              3 index    where chunks begin, see `gputop.recording.scan`; in files only
              6 findings   the diagnosis of all before it, see `gputop.stream.kept`; in files only
              8 end      the collector ended by itself: a stream without it (or, in a file, without an index) was cut short
              9 summary  of the last second, see `gputop.fleet.summary`; in streams of `collect --summary` only
              10 answer  to a question, see `gputop.fleet.asking`; in the same streams
              other      skipped by its size, so that a newer minor version may add kinds
    tier    = of frames: 0 every tick; 1 one frame a second; 2 one a minute
    flags   = 1 the first frame is a key frame: a chunk begins here
              2 a marker was dropped in it
              4 plain: the payload is the msgpack itself, as on a pipe. Otherwise it is
                above u32, size u32, zstd: ``size`` bytes of msgpack. ``above`` is 0 if a zstd stream begins; else the stream of the
                piece before goes on here, and ``above`` is that piece's check. An array are the frames, a map their columns
                (see `gputop.recording.columns`), which go on from those of the piece before likewise
    t_ns    = CLOCK_MONOTONIC of the first frame; of the last frame before it for other kinds
    check   = CRC-32 of the payload; head_check: CRC-32 of the 24 bytes before it

A *chunk* is about 10 s of one tier: a key frame and what follows until the next one. It is one zstd stream, flushed once a second, so
that `kill -9` costs a second at most, and every chunk can be read without the others. A damaged piece costs the rest of its chunk's
stream; reading goes on with the next piece that begins a stream. Every length is bounded before anything is allocated.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import NamedTuple

import msgspec

from gputop.model.frame import FORMAT_MAJOR, Frame, Header
from gputop.recording.sound import check_header
from gputop.system.decoding import BROKEN
from gputop.system.errors import UserError

MAGIC = b"GPUTOP2\n"
SYNC = b"\x9dGP\n"
HEAD = struct.Struct("<4sBBHIQII")
KIND_HEADER, KIND_FRAMES, KIND_INDEX, KIND_FINDINGS, KIND_END, KIND_SUMMARY, KIND_ANSWER = 1, 2, 3, 6, 8, 9, 10
ENDS = (KIND_INDEX, KIND_END)  # a writer's last block; a stream that ends with another one was cut short
TICKS, SECONDS, MINUTES = TIERS = range(3)
TIER_NAMES = {TICKS: "every tick", SECONDS: "1 s", MINUTES: "1 min"}  # as commands and screens call them
FLAG_KEY, FLAG_MARK, FLAG_PLAIN = 1, 2, 4
MAX_BLOCK_BYTES = 16 << 20  # as stored, and once inflated
_VERSION = re.compile(rb"GPUTOP(\d{1,9})\n")
_UNPACKERS = {b"\x1f\x8b": "gzip -d", b"\x28\xb5\x2f\xfd": "zstd -d", b"\xfd7zXZ": "xz -d", b"BZh": "bzip2 -d"}


class FormatError(UserError):
    """These bytes are no stream of gputop, or one of another major version; the text has which."""


class VersionError(FormatError):
    """A stream of another major version."""


class BlockHead(NamedTuple):
    """A block's sound head."""

    kind: int
    tier: int
    flags: int
    size: int
    t_ns: int
    check: int


class _Version(msgspec.Struct):
    """The only part of a header that every version has."""

    major: int = 1  # which format 1 left out


_encoder = msgspec.msgpack.Encoder()
_header_decoder = msgspec.msgpack.Decoder(Header)


def pack(kind: int, payload: bytes, *, tier: int = TICKS, flags: int = 0, t_ns: int = 0) -> bytes:
    """One block."""
    head = HEAD.pack(SYNC, kind, tier, flags, len(payload), t_ns, zlib.crc32(payload), 0)[:-4]
    return head + zlib.crc32(head).to_bytes(4, "little") + payload


def pack_header(header: Header) -> bytes:
    """Magic and header block, with which every stream begins."""
    return MAGIC + restated(header)


def restated(header: Header) -> bytes:
    """The header block without the magic, as it is repeated within a stream."""
    return pack(KIND_HEADER, _encoder.encode({"major": header.major, **msgspec.to_builtins(header)}), t_ns=header.t_ns)


def pack_frames(frames: list[Frame]) -> bytes:
    """One plain piece of at least one frame."""
    return pack(KIND_FRAMES, _encoder.encode(frames), flags=FLAG_PLAIN | flags_of(frames), t_ns=frames[0].t_ns)


def pack_end(t_ns: int) -> bytes:
    """The block with which a collector ends its stream, behind a frame of ``t_ns``."""
    return pack(KIND_END, b"", t_ns=t_ns)


def flags_of(frames: list[Frame]) -> int:
    """`FLAG_KEY` and `FLAG_MARK` of a piece of ``frames``."""
    return (FLAG_KEY if frames[0].key else 0) | (FLAG_MARK if any(frame.marks for frame in frames) else 0)


def unpack_head(data: bytes | bytearray | memoryview, offset: int = 0) -> BlockHead | None:
    """The head at ``offset``, None if no sound one stands there."""
    if len(data) - offset < HEAD.size:
        return None
    sync, kind, tier, flags, size, t_ns, check, head_check = HEAD.unpack_from(data, offset)
    if sync != SYNC or size > MAX_BLOCK_BYTES or zlib.crc32(data[offset : offset + HEAD.size - 4]) != head_check:
        return None
    return BlockHead(kind, tier, flags, size, t_ns, check)


def unpack_header(payload: bytes) -> Header:
    """The header. VersionError where it is of another major version, FormatError if it is broken."""
    try:
        major = msgspec.msgpack.decode(payload, type=_Version).major
    except BROKEN:
        major = FORMAT_MAJOR
    check_major(major)
    try:
        header = _header_decoder.decode(payload)
        check_header(header)
    except BROKEN as error:
        raise FormatError(f"the header is broken: {error}") from None
    return header


def check_major(major: int) -> None:
    """VersionError for any other major version than ours."""
    if major > FORMAT_MAJOR:
        raise VersionError(f"made by a newer gputop (format {major}, this one reads format {FORMAT_MAJOR}): update gputop")
    if major < FORMAT_MAJOR:
        raise VersionError(f"made by an older gputop (format {major}, this one reads format {FORMAT_MAJOR}): open it with that gputop")


def check_beginning(start: bytes | bytearray) -> None:
    """VersionError where a stream without a sound header begins with the magic of another major version."""
    if found := _VERSION.search(start):
        check_major(int(found[1]))


def check_unpacked(start: bytes) -> None:
    """FormatError if a file begins like a compressed one."""
    unpacker = next((tool for magic, tool in _UNPACKERS.items() if start.startswith(magic)), None)
    if unpacker:
        raise FormatError(f"it is compressed: unpack it first ({unpacker})")
