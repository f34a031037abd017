"""Recordings as they are written: append-only, a piece a second, so that whatever ends the writer costs at most that second."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from errno import EFBIG, EIO
from itertools import count
from pathlib import Path

import zstandard

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header, Mark
from gputop.recording.chunks import Packer
from gputop.recording.format import KIND_FINDINGS, MAGIC, MAX_BLOCK_BYTES, MINUTES, SECONDS, TICKS, TIERS, pack, restated
from gputop.recording.keyframe import key_frame
from gputop.recording.scan import ChunkStart, Index, pack_index
from gputop.recording.seconds import Minutes, Seconds
from gputop.system.errors import UserError
from gputop.system.output import create, write_all
from gputop.system.text import clean, counted, file_size

INDEX_EVERY = 32  # chunks of ticks
PIECE_NS = {SECONDS: 10 * SECOND_NS, MINUTES: 0}  # of a tier in a piece; a kill costs it no frame, for the ticks are there
FINDINGS_NS = 3600 * SECOND_NS  # between findings, which a kill costs: a choice
RUN_BYTES = 1 << 20  # that are copied at once
MAX_PENDING_ROWS = 50_000  # processes and threads in a piece: far below what a piece may hold
NO_LIMIT = 1 << 62  # bytes of a file
END_SHARE = 50  # one part in so many of a file is for what stands at its end: index and findings
LEAST_END_BYTES = 2000  # for the end of a small file: an index of a few chunks takes 750, and a second may be larger than those before
Tell = Callable[[], bytes]  # the findings of the diagnosis since a recording began; empty for none


class DiskError(UserError):
    """The disk has not taken what was to be written."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write to {clean(path)}: {error.strerror}")
        self.reason = error.strerror or str(error)
        self.ends_file = error.errno == EFBIG  # whether this file can be no larger, however much room there is


class Writer:
    """One recording. Every method raises UserError if the file cannot be made or grow; what was written before is whole.

    The file is locked (flock) while it grows, which is how a reader knows that it does.
    """

    def __init__(self, path: str, header: Header, tell: Tell | None = None, minutes: bool = False) -> None:
        """``tell`` returns the findings, as the recording ends. ``minutes``: with a tier of minutes."""
        self.path = path
        self.header = header
        self.size = 0
        self.end_ns = header.t_ns
        self.frames = 0  # written so far
        self.problem = ""  # what its end had no room for; empty where that had
        self._tell = tell
        self._packers = {tier: Packer(tier) for tier in TIERS}
        self._pending: list[Frame] = []
        self._rows = 0
        self._begin_tiers(minutes)
        self._index_at = self._findings_at = 0
        self._findings_ns = header.t_ns
        self._is_settled = False
        self._chunks: list[ChunkStart] = []
        self._last_chunks: dict[int, ChunkStart] = {}
        self._marks: list[Mark] = []
        self._fd = create(path)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            self._write(MAGIC + 2 * restated(header))
        except UserError:
            os.unlink(self.path)  # or it would be in the way of another try
            os.close(self._fd)
            raise

    def add(self, frame: Frame) -> None:
        """Append a frame; about once a second this writes. The first should be a key frame (see `Ring.recent`)."""
        if frame.key:
            self.flush()
        self._pending.append(frame)
        self._rows += len(frame.procs) + sum(len(proc.threads) for proc in frame.procs)
        if self.full_in_ns <= 0 or self._rows > MAX_PENDING_ROWS:
            self.flush()

    def restate(self, header: Header) -> None:
        """Repeat the header, by clocks that have jumped."""
        try:
            self.flush()
        finally:
            self.header = header
        self._write(restated(header))

    def resume(self) -> None:
        """Go on after an error, behind what is whole. A key frame must come next."""
        self._pending, self._rows = [], 0
        self._begin_tiers(self._minutes is not None)
        self._write(restated(self.header))

    @property
    def fd(self) -> int:
        """Descriptor of the file, to read from."""
        return self._fd

    @property
    def may_grow(self) -> bool:
        """True if what is written now is kept: False if the file is closed, or was deleted or cut."""
        return self._fd >= 0 and not self._gone and os.fstat(self._fd).st_size >= self.size

    @property
    def full_in_ns(self) -> int:
        """ns after the last frame until the one that completes a piece, less half a beat for jitter."""
        span_ns = self._pending[-1].t_ns - self._pending[0].t_ns if self._pending else -self.header.interval_ns
        return SECOND_NS - self.header.interval_ns * 3 // 2 - span_ns

    @property
    def closed_bytes(self) -> int:
        """Largest size in bytes of the file if it ended now, without findings and index."""
        return self.size + self._merging_bytes

    def flush(self) -> None:
        """Write what is pending."""
        frames, self._pending, self._rows = self._pending, [], 0
        if not frames:
            return
        if frames[0].key and (gone := self._gone):
            raise UserError(gone)
        if frames[0].key and not self._is_settled and sum(chunk.tier == TICKS for chunk in self._chunks) >= INDEX_EVERY:
            self._write_index()
        self._write_piece(TICKS, frames)
        self.frames += len(frames)
        self._marks += [mark for frame in frames for mark in frame.marks]
        self.end_ns = frames[-1].t_ns
        if self._seconds is not None:
            for frame in frames:
                self._keep(SECONDS, self._seconds.add(frame))

    def _begin_tiers(self, minutes: bool) -> None:
        """Let the tiers of seconds and minutes begin with the next frame."""
        self._seconds = Seconds() if minutes or self.header.interval_ns <= SECOND_NS // 2 else None
        self._minutes = Minutes() if minutes else None
        self._merged: dict[int, list[Frame]] = {SECONDS: [], MINUTES: []}
        self._merging_bytes = 0  # of ticks that are not yet written as seconds: seconds take less

    def _keep(self, tier: int, merged: list[Frame]) -> None:
        """Append frames of a tier; about every `PIECE_NS` this writes."""
        for frame in merged:
            pending = self._merged[tier]
            if pending and (frame.key or frame.t_ns - pending[0].t_ns >= PIECE_NS[tier]):
                self._merged[tier] = []
                self._write_piece(tier, pending)
            self._merged[tier].append(frame)
            if tier == SECONDS and self._minutes is not None:
                self._keep(MINUTES, self._minutes.add(frame))

    def _end_tiers(self) -> None:
        if self._seconds is not None:
            self._keep(SECONDS, self._seconds.flush())
        if self._minutes is not None:
            self._keep(MINUTES, self._minutes.flush())
        for tier, frames in self._merged.items():
            if frames:
                self._write_piece(tier, frames)

    def _write_piece(self, tier: int, frames: list[Frame]) -> None:
        at, last = self.size, self._last_chunks.get(tier)
        try:
            self._write(self._packers[tier].pack(frames))
        except UserError:
            self._packers[tier].begin()  # the next piece must not build upon one that is not there
            raise
        if frames[0].key or last is None:
            last = self._last_chunks[tier] = ChunkStart(frames[0].t_ns, at, tier, frames[0].t_ns)
            self._chunks.append(last)
        last.last_ns = frames[0].t_ns
        if tier == TICKS and self._seconds is not None:
            self._merging_bytes += self.size - at
        elif tier == SECONDS:
            self._merging_bytes = 0

    def close(self) -> None:
        """Write what is pending, findings and index, and close the file; what the disk has no room for is left out."""
        if self._fd < 0:
            return
        frames = len(self._pending)
        try:
            self.flush()
            frames = 0
            self._end_tiers()
            self._write_index(with_findings=True)
        except UserError as error:
            self.problem = (
                f"{error}: {counted(frames, 'last frame')} not written" if frames else f"{error}: its frames are there, its index is not"
            )
        self.problem = self.problem or self._gone
        try:
            os.close(self._fd)
        except OSError as error:  # a file system over the network reports a full disk only now
            self.problem = self.problem or str(DiskError(self.path, error))
        self._fd = -1

    def settle(self) -> int:
        """Write what is pending, findings and an index, and no further findings or index until `move` or `unsettle`.

        Returns the size: the file up to there may be copied until then.
        """
        self.flush()
        self._write_index(with_findings=True)
        self._is_settled = True
        return self.size

    def unsettle(self) -> None:
        """Write findings and indices again, after a copy that failed."""
        self._is_settled = False

    def move(self, part: str, fd: int, index_at: int, findings_at: int, offsets: Mapping[int, int]) -> None:
        """Continue in the file ``part``, open as ``fd``, which takes this one's name. It holds the content of this file when it was
        settled, less some chunks; ``offsets`` maps the others' offsets, and that of the end, to those in it.

        Raises OSError if that fails; nothing has changed then.
        """
        settled_at = max(offsets)
        shift = offsets[settled_at] - settled_at
        for _ in copied(self._fd, settled_at, self.size, fd):
            pass
        os.fsync(fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(part, self.path)
        os.close(self._fd)
        self._fd, self.size, self._is_settled = fd, self.size + shift, False
        self._index_at, self._findings_at = index_at, findings_at
        for chunk in self._chunks:
            chunk.offset = offsets.get(chunk.offset, chunk.offset + shift)

    @property
    def _gone(self) -> str:
        """Reason to stop if the file has no name any more: what is written is lost as it is closed."""
        return f"{clean(self.path)} was deleted while it was recorded" if os.fstat(self._fd).st_nlink == 0 else ""

    def _write_findings(self) -> None:
        """Write findings, if there are some; without room for them in this file readers judge anew."""
        findings = self._tell() if self._tell is not None else b""
        self._findings_ns = self.end_ns
        if 0 < len(findings) <= MAX_BLOCK_BYTES:
            at, self._findings_at = self.size, 0
            try:
                self._write(pack(KIND_FINDINGS, zstandard.ZstdCompressor().compress(findings), t_ns=self.end_ns))
            except DiskError as error:
                if not error.ends_file:
                    raise
            else:
                self._findings_at = at

    def _write_index(self, with_findings: bool = False) -> None:
        """Write an index. It keeps the last chunks of the tiers of seconds and minutes for the next index, because they may still grow."""
        if with_findings or self.end_ns - self._findings_ns >= FINDINGS_NS:
            self._write_findings()
        self._write(restated(self.header))
        at = self.size
        self._write(pack_index(Index(self._index_at, self._chunks, self._marks, self.end_ns, self._findings_at)))
        self._index_at, self._marks = at, []
        self._chunks = [last for tier, last in self._last_chunks.items() if tier != TICKS]

    def _write(self, data: bytes) -> None:
        if os.fstat(self._fd).st_size < self.size:
            raise UserError(f"{clean(self.path)} was emptied or cut while it was recorded")
        try:
            write_all(self._fd, data)
        except OSError as error:
            with suppress(OSError):  # what is left then is passed over by readers
                os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
            raise DiskError(self.path, error) from None
        self.size += len(data)


class Rotation:
    """Recordings one after the other, none larger than ``max_bytes`` (but for a last second that is larger than all before). The
    newest ``max_files`` are kept (0: all).

    The first has the given name, each later one the next number that is free: run.gputop, run.2.gputop, run.3.gputop …
    """

    def __init__(self, path: str, header: Header, max_bytes: int, max_files: int, begin: Callable[[], Tell | None] = lambda: None) -> None:
        """``begin`` is called as each file begins, for what it asks as it ends."""
        self._first = Path(path)
        self._begin = begin
        self._max_bytes, self._max_files = max_bytes, max_files
        self._count = 1
        self._problem = ""
        self._kept = [path]
        self._written: list[int] = []  # frames in each block but the last
        self._largest = self._largest_block = 0  # chunk, and what was written at once in the middle of one
        self._chunk_at = 0
        self._board = Board(header=header) if max_bytes < NO_LIMIT else None
        self.writer = self.open_writer(path, header)

    def open_writer(self, path: str, header: Header) -> Writer:
        """The next file."""
        return Writer(path, header, self._begin())

    def add(self, frame: Frame) -> None:
        """Add a frame, as `Writer.add`. A new file begins with a key frame if the next chunk may be too large for this file. If the present
        chunk is already too large, a key frame is made here."""
        if self._board is not None:
            self._board.fold(frame)
            if not frame.key and self._has_no_room_for(2 * self._largest_block):  # one may be larger than all before
                frame = key_frame(self._board, frame)
        if frame.key:
            self.writer.flush()
            self._largest = max(self._largest, self.writer.size - self._chunk_at)
            if self._has_no_room_for(2 * self._largest):
                self._turn()
            self._chunk_at = self.writer.size
        before = self.writer.size
        self.writer.add(frame)
        if before > self._chunk_at:  # the first one of a chunk has its key frame, and what the run builds upon
            self._largest_block = max(self._largest_block, self.writer.size - before)

    def restate(self, header: Header) -> None:
        """Restate the header, as `Writer.restate`; later files begin with it."""
        self.writer.restate(header)

    def resume(self, next_file: bool) -> None:
        """Go on after an error, in the next file if the last one cannot grow, or with ``next_file``. A key frame must come next."""
        if next_file or not self.writer.may_grow:
            self._turn()
        else:
            self.writer.resume()

    @property
    def header(self) -> Header:
        """Header of the present file. A new one is written when recording goes on after an error."""
        return self.writer.header

    @header.setter
    def header(self, header: Header) -> None:
        self.writer.header = header

    @property
    def end_ns(self) -> int:
        """Time of the last frame that is written; the header's before the first one."""
        return self.writer.end_ns

    def flush(self) -> None:
        """Write what is pending to the present file, as `Writer.flush`."""
        self.writer.flush()

    def _has_no_room_for(self, size: int) -> bool:
        end_bytes = max(LEAST_END_BYTES, self._max_bytes // END_SHARE)
        return bool(self.writer.frames) and self.writer.closed_bytes + size > self._max_bytes - end_bytes

    @property
    def full_in_ns(self) -> int:
        """ns of frames until the present block is full, as `Writer.full_in_ns`."""
        return self.writer.full_in_ns

    def close(self) -> None:
        """Close the present file, as `Writer.close`."""
        self.writer.close()

    @property
    def problem(self) -> str:
        """Why writing failed, of the first file that has a problem; empty if none has."""
        return self._problem or self.writer.problem

    def summary(self) -> str:
        """Path and size of the recording, for people."""
        if len(self._kept) == 1:
            return f"{clean(self._kept[0])} ({file_size(self.writer.size)})"
        return f"{len(self._kept)} files, {clean(self._kept[0])} to {clean(self._kept[-1])}"

    @property
    def frames(self) -> int:
        """Written so far, in all files that are kept."""
        return sum(self._written) + self.writer.frames

    def discard(self) -> None:
        """Close the file and remove it."""
        self.close()
        with suppress(OSError):
            os.unlink(self.writer.path)

    def _turn(self) -> None:
        """Begin the next file. If that fails nothing has changed, except that the last one is complete."""
        self.writer.close()
        self._problem = self.problem
        number, path = self._next()
        writer = self.open_writer(path, self.writer.header)
        self._written.append(self.writer.frames)
        self.writer, self._count, self._chunk_at = writer, number, 0
        self._kept.append(path)
        if self._max_files and len(self._kept) > self._max_files:
            del self._written[0]
            with suppress(OSError):  # it was taken away
                os.unlink(self._kept.pop(0))

    def _next(self) -> tuple[int, str]:
        """The next number that is free, and the name with it."""
        for number in count(self._count + 1):
            path = self.name_of(number)
            if not os.path.lexists(path):  # as an earlier recording of this name left some
                return number, path
        raise AssertionError("numbers do not end")

    def name_of(self, number: int) -> str:
        """The path of the file of a number, from 1 on."""
        return str(self._first.with_name(f"{self._first.stem}.{number}{self._first.suffix}") if number > 1 else self._first)


def copied(source: int, start: int, end: int, target: int) -> Iterator[int]:
    """Append the bytes between two offsets to ``target``, in runs of `RUN_BYTES`; the offset reached after each. Raises OSError."""
    while start < end:
        data = os.pread(source, min(RUN_BYTES, end - start), start)
        if not data:
            raise OSError(EIO, "it has been cut")
        write_all(target, data)
        start += len(data)
        yield start
