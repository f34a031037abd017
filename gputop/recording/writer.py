"""Recordings as they are written: append-only, a block a second, so that whatever ends the writer costs at most that second."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from errno import EFBIG
from itertools import count
from pathlib import Path

import zstandard

from gputop.model.board import Board
from gputop.model.frame import SECOND_NS, Frame, Header, Mark
from gputop.recording.columns.layout import tick_ns
from gputop.recording.compact import MOST_IN_RUN, Packer
from gputop.recording.format import CODEC_ZSTD, KIND_FINDINGS, KIND_INDEX, MAGIC, MAX_BLOCK_BYTES, pack, pack_header
from gputop.recording.index import Index, pack_index
from gputop.recording.keyframe import key_frame
from gputop.recording.parity import Parity
from gputop.system.errors import UserError
from gputop.system.output import create
from gputop.system.text import clean, counted, file_size

REFERENCE_EVERY_NS = 240 * SECOND_NS
RUN_BYTES, RUN_NS = 160_000, 55 * SECOND_NS
"""A run ends with the chunk that makes it so large, or so long: who wants its last block must open all."""
INDEX_EVERY = 32
"""Chunks."""
MAX_PENDING_ROWS = 50_000
"""Processes and threads in a block: far below what a block may hold."""
NO_LIMIT = 1 << 62
"""Of a file's size."""
END_SHARE = 50
"""One part in so many of a file is for what stands at its end: index and findings."""
Tell = Callable[[], bytes]
"""What the diagnosis has found since a recording began; empty for nothing."""


class DiskError(UserError):
    """The disk has not taken what was to be written."""

    def __init__(self, path: str, error: OSError) -> None:
        super().__init__(f"cannot write to {clean(path)}: {error.strerror}")
        self.reason = error.strerror or str(error)
        self.ends_file = error.errno == EFBIG
        """Whether this file can be no larger, however much room there is."""


class Writer:
    """One recording. Everything raises UserError when the file cannot be made or grow; what was written until then is whole.

    The file is locked (flock) while it grows, which is how a reader knows that it does.
    """

    def __init__(self, path: str, header: Header, tell: Tell | None = None) -> None:
        """``tell`` is asked as the recording ends."""
        self.path = path
        self.header = header
        self.size = 0
        self._tell = tell
        self.end_ns = header.t_ns
        self._fd = create(path)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._packer = Packer()
        self._pending: list[Frame] = []
        self._rows = 0
        self.frames = 0
        """Written so far."""
        self.problem = ""
        """What its end had no room for; empty where that had."""
        self._parity = Parity()
        self._run_ns = self._run_bytes = self._blocks = self._runs = 0
        self._referred_ns = 0
        self._index = 0
        self._chunks: list[tuple[int, int]] = []
        self._references: list[int] = []
        self._marks: list[Mark] = []
        self._copy = b""
        """Of a reference: it stands behind the run, for one hole not to hit both."""
        self._restated = pack_header(header)[len(MAGIC) :]
        self._begin()

    def _begin(self) -> None:
        """Where not even that can be written, nothing is left that would be in the way of another try."""
        try:
            self._write(MAGIC + 2 * self._restated)
        except UserError:
            os.unlink(self.path)
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
        """Say the header anew, for a clock has jumped. It stands between two runs."""
        try:
            self.flush()
            self._end_run()
        finally:
            self.header, self._restated = header, pack_header(header)[len(MAGIC) :]
        self._write(self._restated)

    def resume(self) -> None:
        """Go on after an error, behind what is whole. A key frame must come next."""
        self._pending, self._rows = [], 0
        self._copy, self._referred_ns = b"", -REFERENCE_EVERY_NS  # the last one may not have been written
        self._end_run()
        self._restated = pack_header(self.header)[len(MAGIC) :]
        self._write(self._restated)

    @property
    def may_grow(self) -> bool:
        """Whether what is written now is kept: not where it is closed, or somebody has deleted or cut it."""
        return self._fd >= 0 and not self._gone and os.fstat(self._fd).st_size >= self.size

    @property
    def full_in_ns(self) -> int:
        """How long after the last frame comes the one that completes a block, less half a beat for jitter."""
        span_ns = self._pending[-1].t_ns - self._pending[0].t_ns if self._pending else -self.header.interval_ns
        return SECOND_NS - self.header.interval_ns * 3 // 2 - span_ns

    @property
    def closed_bytes(self) -> int:
        """How large it would be if its run ended now, without findings and index."""
        return self.size + self._parity.packed_bytes + len(self._copy)

    def flush(self) -> None:
        """Write what is pending."""
        frames, self._pending, self._rows = self._pending, [], 0
        if not frames:
            return
        if frames[0].key or not self._runs:
            self._begin_chunk(frames)
        elif self._blocks >= MOST_IN_RUN:
            self._end_run()
        block = self._packer.pack(frames)
        if not self._parity.has_room_for(block):
            self._write_parity()
        self._write(block)
        self.frames += len(frames)
        self._parity.add(block)
        self._blocks += 1
        self._run_bytes += len(block)
        self._marks += [mark for frame in frames for mark in frame.marks]
        self.end_ns = tick_ns(frames[-1].t_ns)

    def close(self) -> None:
        """Write what is pending, what ends the run, findings and index, and close the file; what the disk has no room for is left out."""
        if self._fd < 0:
            return
        frames = len(self._pending)
        try:
            self.flush()
            frames = 0
            self._end_run()
            self._write_reference(self._copy)
            self._write_index(self._write_findings())
        except UserError as error:
            self.problem = (
                f"{error}: {counted(frames, 'last frame')} not written" if frames else f"{error}: its frames are there, its index is not"
            )
        self.problem = self.problem or self._gone
        try:
            os.close(self._fd)
        except OSError as error:  # a file system over the network tells of a full disk only now
            self.problem = self.problem or str(DiskError(self.path, error))
        self._fd = -1

    @property
    def _gone(self) -> str:
        """Said where no name leads to the file any more: what is written is lost as it is closed."""
        return f"somebody has deleted {clean(self.path)} while it was recorded" if os.fstat(self._fd).st_nlink == 0 else ""

    def _begin_chunk(self, frames: list[Frame]) -> None:
        now = tick_ns(frames[0].t_ns)
        if not self._blocks or now - self._run_ns >= RUN_NS or self._run_bytes >= RUN_BYTES:
            self._end_run()
            self._begin_run(frames, now)
        self._chunks.append((now, self.size))

    def _begin_run(self, frames: list[Frame], now: int) -> None:
        if gone := self._gone:
            raise UserError(gone)
        self._run_ns, self._runs = now, self._runs + 1
        self._write_reference(self._copy)
        self._copy = b""
        if len(self._chunks) >= INDEX_EVERY:
            self._write_index()
        if self._runs <= 2 or now - self._referred_ns >= REFERENCE_EVERY_NS:  # as recording begins, the probes have told of nobody yet
            self._referred_ns = now
            self._copy = self._packer.refer(frames)
            self._write_reference(self._copy)
            self._parity.add(self._copy)

    def _write_reference(self, reference: bytes) -> None:
        if reference:
            self._references.append(self.size)
            self._write(reference)

    def _end_run(self) -> None:
        self._blocks = self._run_bytes = 0
        self._packer.begin_run()
        self._write_parity()

    def _write_parity(self) -> None:
        parity, self._parity = self._parity, Parity()
        if parity.length:
            self._write(parity.pack(self.end_ns))

    def _write_findings(self) -> int:
        """Where they stand, 0 where there are none."""
        findings = self._tell() if self._tell is not None else b""
        if not 0 < len(findings) <= MAX_BLOCK_BYTES:
            return 0
        at = self.size
        self._write(pack(KIND_FINDINGS, zstandard.ZstdCompressor().compress(findings), CODEC_ZSTD, t_ns=self.end_ns))
        return at

    def _write_index(self, findings: int = 0) -> None:
        index = Index(self._index, self._chunks, self._references, self._marks, self.end_ns, findings)
        self._write(self._restated)
        at = self.size
        self._write(index_block(index))
        self._index, self._chunks, self._references, self._marks = at, [], [], []

    def _write(self, data: bytes) -> None:
        if os.fstat(self._fd).st_size < self.size:
            raise UserError(f"somebody has emptied or cut {clean(self.path)} while it was recorded")
        try:
            write_all(self._fd, data)
        except OSError as error:
            with suppress(OSError):  # what is left then is passed over by readers
                os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
            # The index must not tell of what does not stand there.
            self._chunks = [chunk for chunk in self._chunks if chunk[1] < self.size]
            self._references = [at for at in self._references if at < self.size]
            raise DiskError(self.path, error) from None
        self.size += len(data)


class Rotation:
    """Recordings one after the other, none larger than ``max_bytes`` (but for a last second that is larger than all before), of which the
    newest ``max_files`` are kept (0: all).

    The first has the given name, those after it the next number that is free: run.gputop, run.2.gputop, run.3.gputop …
    """

    def __init__(self, path: str, header: Header, max_bytes: int, max_files: int, begin: Callable[[], Tell | None] = lambda: None) -> None:
        """``begin`` is called as each file begins, for what it asks as it ends."""
        self._first = Path(path)
        self._begin = begin
        self._max_bytes, self._max_files = max_bytes, max_files
        self._count = 1
        self._problem = ""
        self._kept = [path]
        self._written: list[int] = []
        """Frames in each of these but the last."""
        self._largest = self._largest_block = 0
        """Chunk, and what was written at once in the middle of one."""
        self._chunk_at = 0
        self._board = Board(header=header) if max_bytes < NO_LIMIT else None
        self.writer = Writer(path, header, self._begin())

    def add(self, frame: Frame) -> None:
        """As `Writer.add`; a new file begins with a key frame, when the next chunk may be too large for this one, or with one that is made
        here, when this chunk is."""
        if self._board is not None:
            self._board.fold(frame)
            if not frame.key and self._has_no_room_for(self._largest_block):
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
        """As `Writer.restate`; the files to come begin with it."""
        self.writer.restate(header)

    def resume(self, anew: bool) -> None:
        """Go on after an error, in the next file where the last one cannot grow or ``anew`` is asked for. A key frame must come next."""
        if anew or not self.writer.may_grow:
            self._turn()
        else:
            self.writer.resume()

    @property
    def header(self) -> Header:
        """As `Writer.header`; one that is set is written as it goes on after an error."""
        return self.writer.header

    @header.setter
    def header(self, header: Header) -> None:
        self.writer.header = header

    @property
    def end_ns(self) -> int:
        """Time of the last frame that is written; the header's before the first one."""
        return self.writer.end_ns

    def flush(self) -> None:
        """As `Writer.flush`."""
        self.writer.flush()

    def _has_no_room_for(self, size: int) -> bool:
        return bool(self.writer.frames) and self.writer.closed_bytes + size > self._max_bytes - self._max_bytes // END_SHARE

    @property
    def full_in_ns(self) -> int:
        """As `Writer.full_in_ns`."""
        return self.writer.full_in_ns

    def close(self) -> None:
        """As `Writer.close`."""
        self.writer.close()

    @property
    def problem(self) -> str:
        """As `Writer.problem`, of the first file that has one."""
        return self._problem or self.writer.problem

    def summary(self) -> str:
        """Where the recording is, and how large."""
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
        """Where there can be no next file nothing has changed but that the last one is whole."""
        self.writer.close()
        self._problem = self.problem
        number, path = self._next()
        writer = Writer(path, self.writer.header, self._begin())
        self._written.append(self.writer.frames)
        self.writer, self._count, self._chunk_at = writer, number, 0
        self._kept.append(path)
        if self._max_files and len(self._kept) > self._max_files:
            del self._written[0]
            with suppress(OSError):  # somebody took it away
                os.unlink(self._kept.pop(0))

    def _next(self) -> tuple[int, str]:
        """The next number that is free, and the name with it."""
        for number in count(self._count + 1):
            path = str(self._first.with_name(f"{self._first.stem}.{number}{self._first.suffix}"))
            if not os.path.lexists(path):  # as an earlier recording of this name left some
                return number, path
        raise AssertionError("numbers do not end")


def index_block(index: Index) -> bytes:
    """An index as it stands in a recording."""
    return pack(KIND_INDEX, pack_index(index), t_ns=index.end_ns)


def write_all(fd: int, data: bytes) -> None:
    """All of ``data``, however many writes that takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
