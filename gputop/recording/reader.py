"""Recordings as they are read back: any moment at once, while they grow, and past what is damaged."""

from __future__ import annotations

import fcntl
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

import zstandard
from msgspec import Struct

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header, Mark
from gputop.recording.chunks import Unpacker
from gputop.recording.format import (
    KIND_FINDINGS,
    KIND_FRAMES,
    KIND_HEADER,
    MAGIC,
    MAX_BLOCK_BYTES,
    MINUTES,
    SECONDS,
    SYNC,
    TICKS,
    TIERS,
    FormatError,
    VersionError,
    check_beginning,
    check_unpacked,
    unpack_header,
)
from gputop.recording.scan import BlockPlace, ChunkStart, Contents, open_regular, payload_at, place_at, places
from gputop.recording.seek import Seeker, blocks_between
from gputop.system.text import clean, counted

Parts = tuple[str, ...] | None
"""Paths in frames that alone are decoded, several times as fast: lists and structs such as ``probes.calls``, and fields in these such as
``procs.vol``. None is all."""
OPENING_BYTES = 1 << 20  # from a file's beginning and end, in which its header must stand


class Blocks:
    """The blocks of frames of the open file ``fd``; its ``contents`` may grow."""

    def __init__(self, fd: int, contents: Contents) -> None:
        self.lost: dict[int, int] = {}  # offset -> damaged bytes there, as far as it has been read
        self._fd = fd
        self._contents = contents
        self._unpackers: dict[tuple[int, Parts], Unpacker] = {}
        self._latest: dict[tuple[int, Parts], tuple[BlockPlace, Sequence[Frame]]] = {}  # a replay reads a block once for each tick in it

    def _places(self, start: int, end: int) -> Iterator[BlockPlace]:
        """The blocks between two offsets; the bytes between them are counted as lost."""
        edge = start
        for place in places(self._fd, start, end):
            if edge < place.offset:
                self.lost[edge] = place.offset - edge
            edge = place.end
            yield place
        if edge < end:
            self.lost[edge] = end - edge

    def between(self, start: int, end: int, tier: int) -> list[BlockPlace]:
        """Blocks of a tier between two offsets; a block that goes back in time is left out and counted as lost."""
        reached_ns, kept = 0, []
        for place in self._places(start, end):
            if place.head.kind != KIND_FRAMES or place.head.tier != tier:
                continue
            if place.head.t_ns < reached_ns:
                self.give_up(place)
            else:
                reached_ns = place.head.t_ns
                kept.append(place)
        return kept

    def frames(self, place: BlockPlace, chunk: int, parts: Parts = None) -> Sequence[Frame]:
        """The frames of a block in the chunk that begins at offset ``chunk``; none if it is damaged."""
        key = place.head.tier, parts
        if (latest := self._latest.get(key)) is not None and latest[0] == place:
            return latest[1]
        unpacker = self._unpackers.get(key) or self._unpackers.setdefault(key, Unpacker(parts))
        try:
            payload = payload_at(self._fd, place)
            if unpacker.lacks(payload, place.head):
                self._read_until(place, chunk, unpacker)
            frames = unpacker.frames(payload, place.head)
            if frames and frames[0].t_ns != place.head.t_ns:
                raise FormatError("a block begins at another time than its head states")
        except FormatError:
            self.give_up(place)
            return ()
        self._latest[key] = place, frames
        return frames

    def _read_until(self, place: BlockPlace, chunk: int, unpacker: Unpacker) -> None:
        """Read the blocks of a chunk that stand before one of its blocks."""
        for before in places(self._fd, chunk, place.offset):
            if before.head.kind == KIND_FRAMES and before.head.tier == place.head.tier:
                try:
                    unpacker.frames(payload_at(self._fd, before), before.head)
                except FormatError:
                    continue

    def verify(self) -> None:
        """Count as lost what is damaged in the chunks of any tier, in one pass; nothing is decoded."""
        begins = {tier: [chunk.offset for chunk in chunks][::-1] for tier, chunks in self._contents.chunks.items()}
        reached_ns = dict[int, int]()  # by tier, since its chunk began
        first = min((offsets[-1] for offsets in begins.values() if offsets), default=self._contents.end)
        for place in self._places(first, self._contents.end):
            tier = place.head.tier
            if place.head.kind != KIND_FRAMES or tier not in begins:
                continue
            while begins[tier] and begins[tier][-1] <= place.offset:
                begins[tier].pop()
                reached_ns[tier] = 0
            if tier not in reached_ns:
                continue  # before its first chunk: never read
            if place.head.t_ns < reached_ns[tier]:
                self.give_up(place)
                continue
            reached_ns[tier] = place.head.t_ns
            try:
                payload_at(self._fd, place)
            except FormatError:
                self.give_up(place)

    def give_up(self, place: BlockPlace) -> None:
        """Count a block as lost."""
        self.lost[place.offset] = place.end - place.offset


class FileBlock(Struct, frozen=True):
    """A block of a recording: about a second of frames."""

    file: Blocks
    place: BlockPlace
    chunk: int  # offset of the chunk that it stands in

    @property
    def t_ns(self) -> int:
        """Time of its first frame."""
        return self.place.head.t_ns

    def frames(self, parts: Parts = None) -> Sequence[Frame]:
        """Frames of the block; none if it is damaged, which the recording then counts."""
        return self.file.frames(self.place, self.chunk, parts)


class FileChunk(Struct, frozen=True):
    """A chunk of a file, from one key frame to the next, as far as no finer chunk covers the same time."""

    file: Blocks
    t_ns: int  # from here on it is read; behind its key frame where a finer chunk comes before
    chunk: ChunkStart
    end: int  # offset behind it
    until_ns: int  # from here on the next one is read, where that is of another tier

    @property
    def tier(self) -> int:
        """See `gputop.recording.format`."""
        return self.chunk.tier

    @property
    def is_whole(self) -> bool:
        """True if the part begins at its chunk's key frame."""
        return self.t_ns == self.chunk.t_ns

    def blocks(self) -> Sequence[FileBlock]:
        """Blocks of the chunk's frames, from the key frame on."""
        found = self.file.between(self.chunk.offset, self.end, self.tier)
        return [FileBlock(self.file, place, self.chunk.offset) for place in found]


class Recording:
    """A recording. FormatError, a UserError, if ``path`` is no recording, is of a newer major version, or cannot be read.

    Damaged parts are left out and counted in `problem` as they are met.
    """

    tier: int  # that is read where none is asked for

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = _open(path)
        try:
            self._size = os.fstat(self._fd).st_size
            self.header = self._read_header()
            self._contents = Contents.load(self._fd, self._size)
            self._dated_by = self._contents.header
            self.header = self._dated(self.header)
        except OSError as error:
            self.close()
            raise FormatError(f"{clean(path)} cannot be read: {error.strerror}") from None
        except FormatError as error:
            self.close()
            raise FormatError(f"{clean(path)}: {error}") from None
        self._blocks = Blocks(self._fd, self._contents)
        self.tier = TICKS
        self._seekers = {tier: Seeker(self.header) for tier in TIERS}
        self._stretches: dict[int, tuple[int, list[FileChunk]]] = {}
        self._end_ns: tuple[BlockPlace | None, int] = (None, self._contents.end_ns)
        self.missing: dict[int, int] = {}  # number of a frame -> how many behind it are not there, as far as it has been read in order

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def first_path(self) -> str:
        """Path of the file, of several the first one's."""
        return self.path

    @property
    def start_ns(self) -> int:
        """Time of the first frame; without frames the header's."""
        chunks = self.chunks()
        return chunks[0].chunk.t_ns if chunks else self.header.t_ns

    @property
    def end_ns(self) -> int:
        """Time of the last frame; without frames the header's."""
        last = self._contents.last
        if last is not self._end_ns[0] and last is not None:
            frames = self._blocks.frames(last, self._chunk_of(last))
            self._end_ns = last, frames[-1].t_ns if frames else last.head.t_ns
        return max(self._end_ns[1], self.start_ns)

    @property
    def lost(self) -> dict[int, int]:
        """Offset -> damaged bytes there, as far as it has been read."""
        return self._blocks.lost

    def follow(self, before: int | None, frame: Frame) -> int | None:
        """Note the frames that are missing between the one of number ``before`` and the next one; its number.

        A lower one is of a collector that was started again."""
        if not frame.ticks:
            return before
        first = frame.seq - frame.ticks + 1
        if before is not None and first > before + 1:
            self.missing[before] = first - before - 1
        return frame.seq

    def verify(self) -> None:
        """Look for damage in parts that no reader needs."""
        self._blocks.verify()

    @property
    def growing(self) -> bool:
        """True if a recorder still appends to it: it then holds a lock. It may do so in a new file of the name (`gputop record --keep`)."""
        if self._is_replaced:
            return True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False

    @property
    def _ends_early(self) -> bool:
        """True if the file lacks both the index that a recorder writes last and the mark that ends a collector's stream."""
        return not (self._contents.ended and self._contents.end == self._sound_until)

    @property
    def _sound_until(self) -> int:
        """Offset in the file up to which the recording should be complete: where another one, or alien data, begins; else the end."""
        return self._contents.another or self._size - self._alien_bytes

    @property
    def _alien_bytes(self) -> int:
        """Number of bytes behind a whole recording that begin no block: another program appended them."""
        contents = self._contents
        behind = os.pread(self._fd, len(SYNC), contents.end) if contents.ended and not contents.another else b""
        return 0 if SYNC.startswith(behind) else self._size - contents.end

    @property
    def problem(self) -> str:
        """Lost parts of the recording, as far as it has been read; empty if nothing is lost."""
        parts = []
        if self.lost:
            parts.append(f"{sum(self.lost.values())} bytes are damaged and left out")
        if self.missing:
            parts.append(missing_words(self.missing))
        if self._ends_early and not self.growing:
            rest = self._sound_until - self._contents.end
            cut = f", with {rest} bytes of a block that is not whole," if rest > 0 else ""
            parts.append(f"it was cut short, as by a kill or a full disk: up to a second at its end{cut} is missing")
        if alien := self._alien_bytes:
            parts.append(f"{alien} bytes behind its end belong to no recording")
        if self._contents.another:
            at = self._contents.another
            parts.append(f"another recording begins at byte {at} and is left out: `tail -c +{at + 1}` makes a file of it")
        if not len(self.chunks()):
            parts.append("it holds no frames")
        return "; ".join(parts)

    @property
    def marks(self) -> list[Mark]:
        """All markers, in order."""
        frames = (frame for place in self._contents.marked for frame in self._blocks.frames(place, self._chunk_of(place)))
        later = [mark for frame in frames for mark in frame.marks]
        return sorted((*self._contents.marks, *later), key=lambda mark: mark.t_ns)

    def _chunk_of(self, place: BlockPlace) -> int:
        """Offset of the chunk that a block stands in."""
        chunks = self._contents.chunks[place.head.tier]
        return chunks[max(0, bisect_right(chunks, place.offset, key=lambda chunk: chunk.offset) - 1)].offset

    def findings(self) -> bytes | None:
        """Findings that its recorder wrote at the end (see `gputop.stream.kept`); None if there are no sound ones."""
        place = place_at(self._fd, self._contents.findings) if self._contents.findings else None
        if place is None or place.head.kind != KIND_FINDINGS:
            return None
        try:
            return zstandard.ZstdDecompressor().decompress(payload_at(self._fd, place), max_output_size=MAX_BLOCK_BYTES)
        except (FormatError, zstandard.ZstdError):
            return None

    def refresh(self) -> bool:
        """Take in what was appended since, maybe to a new file of the name; whether there was anything."""
        if self._is_replaced:
            self._reopen()
            return True
        size = os.fstat(self._fd).st_size
        if size == self._size:
            return False
        before, self._size = self._contents.end, size
        self._contents.extend(self._fd, size)
        if self._contents.header is not self._dated_by:
            self._dated_by = self._contents.header
            self.header = self._dated(self.header)
            for seeker in self._seekers.values():
                seeker.header = self.header
        return self._contents.end > before

    @property
    def _is_replaced(self) -> bool:
        return os.fstat(self._fd).st_nlink == 0 and os.path.isfile(self.path)

    def _reopen(self) -> None:
        """Read on in the file that has the name now, if it is of the same boot."""
        tier, other = self.tier, Recording(self.path)
        if other.header.boot_id != self.header.boot_id:
            other.close()
            return
        self.close()
        self.__dict__.update(other.__dict__, tier=tier)

    def board_at(self, t_ns: int, tier: int | None = None) -> Board:
        """Board at ``t_ns``; an empty one (``seq`` -1) before `start_ns`."""
        tier = self.tier if tier is None else tier
        return self._seekers[tier].board_at(self.chunks(tier), t_ns)

    def key_before(self, t_ns: int) -> int:
        """Time (ns) of the frame from which reading must begin for a whole board at ``t_ns``: the last key frame before, or the first frame
        of all."""
        chunks = self.chunks(self.tier)
        i = bisect_right(chunks, t_ns, key=lambda chunk: chunk.t_ns) - 1
        while i > 0 and not chunks[i].is_whole:
            i -= 1
        return chunks[max(0, i)].t_ns if len(chunks) else t_ns

    def tier_at(self, t_ns: int) -> int:
        """The finest tier that covers a moment."""
        chunks = self.chunks()
        i = bisect_right(chunks, t_ns, key=lambda chunk: chunk.t_ns) - 1
        return chunks[max(0, i)].tier if len(chunks) else TICKS

    def tiers_between(self, start_ns: int, end_ns: int, tier: int) -> list[int]:
        """The tiers that a reader of ``tier`` reads between two moments, the finest first."""
        chunks = self.chunks(tier)
        first = max(0, bisect_right(chunks, start_ns, key=lambda chunk: chunk.t_ns) - 1)
        found = {chunks[i].tier for i in range(first, len(chunks)) if i == first or chunks[i].t_ns < end_ns}
        return sorted(found or {tier})

    def frames(self, start_ns: int = 0, end_ns: int = 1 << 63, parts: Parts = None, tier: int | None = None) -> Iterator[Frame]:
        """The frames with ``start_ns <= t_ns < end_ns``, in order: from a tier, or from another one if that tier lacks the time.

        With ``parts`` the other lists and structs in them may be empty.
        """
        before: int | None = None
        tier = self.tier if tier is None else tier
        begun_ns = dict.fromkeys(TIERS, -1)  # when the last block of each tier begins
        reached_ns, reached_by = -1, tier  # by frames with ticks
        held: list[Frame] = []  # parts of a second before its merged frame; while that is not written, the second's ticks are given instead
        for chunk, block in blocks_between(self.chunks(tier), start_ns, end_ns):
            if block.t_ns >= chunk.until_ns:
                continue
            if block.t_ns < begun_ns[chunk.tier]:
                block.file.give_up(block.place)
                continue
            begun_ns[chunk.tier] = block.t_ns
            for frame in block.frames(parts):
                if frame.t_ns < reached_ns or (frame.t_ns == reached_ns and chunk.tier != reached_by):
                    continue
                if frame.t_ns >= min(end_ns, chunk.until_ns):
                    break
                if chunk.tier != reached_by:
                    if chunk.tier < reached_by:
                        before = None  # a finer tier begins in the middle of what a coarser one covers with its next frame
                    held, reached_by = [one for one in held if one.t_ns < frame.t_ns], chunk.tier
                elif held and frame.t_ns < held[-1].t_ns:
                    continue
                held.append(frame)
                if not frame.ticks and chunk.tier != TICKS:
                    continue
                reached_ns, before = frame.t_ns, self.follow(before, frame)
                yield from (one for one in held if one.t_ns >= start_ns)
                held = []
        yield from (one for one in held if one.t_ns >= start_ns)

    def chunks(self, tier: int = TICKS) -> Sequence[FileChunk]:
        """The chunks that are read for a tier, in order."""
        size, chunks = self._contents.end, self._stretches.get(tier)
        if chunks is None or chunks[0] != size:
            chunks = self._stretches[tier] = size, _stretches(self._blocks, self._contents, tier)
        return chunks[1]

    def t_ns_of(self, unix_ns: int) -> int:
        """CLOCK_MONOTONIC ns of a wall-clock time, as `Header.t_ns_of`."""
        return self.header.t_ns_of(unix_ns)

    def unix_ns_of(self, t_ns: int) -> int:
        """Wall-clock ns since 1970 of a CLOCK_MONOTONIC time, as `Header.unix_ns_of`."""
        return self.header.unix_ns_of(t_ns)

    def _dated(self, header: Header) -> Header:
        """The header with the clocks of the file's last header: the recorder's latest knowledge."""
        try:
            later = _header_at(self._fd, self._dated_by) if self._dated_by is not None else header
        except FormatError:
            return header
        return header.dated(later) if later.boot_id == header.boot_id else header

    def _read_header(self) -> Header:
        """The first sound header, of the copies at the file's two ends."""
        beginning = os.pread(self._fd, 2 * len(MAGIC), 0)
        check_unpacked(beginning)
        problem = _refusal(beginning)
        for start, end in ((0, OPENING_BYTES), (max(OPENING_BYTES, self._size - OPENING_BYTES), self._size)):
            for place in places(self._fd, start, min(self._size, end)):
                if place.head.kind == KIND_HEADER:
                    try:
                        return _header_at(self._fd, place)
                    except VersionError as error:
                        problem = error
                    except FormatError:
                        continue
        raise problem


ORDER = {TICKS: (TICKS, SECONDS, MINUTES), SECONDS: (SECONDS, TICKS, MINUTES), MINUTES: (MINUTES, SECONDS, TICKS)}
"""Tier that is asked for -> tiers in the order in which they are searched for a time."""
_SLACK_NS = {TICKS: 3 * SECOND_NS, SECONDS: 13 * SECOND_NS, MINUTES: 130 * SECOND_NS}
"""ns between the last piece of a chunk and the next chunk, beyond which coarser ones are looked for."""


_EVER = 1 << 63


def _stretches(file: Blocks, contents: Contents, tier: int) -> list[FileChunk]:
    """Stretches that cover all times, each by the first tier in `ORDER` that has it."""
    found: list[FileChunk] = []
    holes = [(0, _EVER)]
    for of in ORDER[tier]:
        chunks, left = contents.chunks[of], list[tuple[int, int]]()
        for begin, end in holes:
            if begin > 0 and end == _EVER and of > tier:  # a coarser tier does not go on behind the end of a finer one
                continue
            edge_ns, is_first = begin, True
            i = max(0, bisect_right(chunks, begin, key=lambda chunk: chunk.t_ns) - 1)
            while i < len(chunks) and chunks[i].t_ns < end:
                chunk = chunks[i]
                i += 1
                if chunk.last_ns + _SLACK_NS[of] < begin:
                    continue
                start_ns = max(chunk.t_ns, begin)
                if start_ns - edge_ns > _SLACK_NS[of] or (is_first and begin < start_ns):
                    left.append((edge_ns, start_ns))
                behind = chunks[i].offset if i < len(chunks) else contents.end
                found.append(FileChunk(file, start_ns, chunk, behind, end))
                edge_ns, is_first = max(edge_ns, chunk.last_ns), False
            left.append((edge_ns, end))
        holes = left
    return sorted(found, key=lambda one: (one.t_ns, ORDER[tier].index(one.tier)))


def missing_words(missing: Mapping[int, int]) -> str:
    """Text about the number of missing frames."""
    return f"missing frames: {sum(missing.values())}, in {counted(len(missing), 'place')} (damaged, taken out or never written)"


def _refusal(beginning: bytes) -> FormatError:
    """Why what begins so, and has no header, is no recording."""
    if not beginning:
        return FormatError("the file is empty")
    if beginning.startswith(MAGIC):
        return FormatError("it was cut short, or is damaged, before anything was recorded: its header is missing")
    try:
        check_beginning(beginning)
    except VersionError as error:
        return error
    return FormatError("this is no recording of gputop")


def _header_at(fd: int, place: BlockPlace) -> Header:
    """Raises FormatError, also for impossible clocks, which order and date the frames."""
    header = unpack_header(payload_at(fd, place))
    if header.t_ns == place.head.t_ns:
        return header
    raise FormatError("the header's clocks cannot be")


def _open(path: str) -> int:
    if path == "-" and not os.path.exists(path):
        raise FormatError("standard input can only be replayed (gputop replay -): keep it in a file first")
    return open_regular(path)
