"""A month in a gigabyte: recordings of one name lose their older ticks, and then seconds, as they grow.

A *pass* rewrites the files that are to lose chunks. A thread copies the rest of each into a file next to it, which then takes its name.
Ticks away from incidents and markers go first, then seconds away from them, then ticks and seconds near them, each the oldest first; the
last hour goes late, and minutes last. What no coarser tier covers goes last of all.

Space needs no clock: files go in the order of their numbers. What is too old goes by the files' own clocks, never on one reading of the
wall clock (a wrong one at boot): *now* is at most as long after the end of the earlier files as this start has run, a pass takes
a step at most, an hour of CLOCK_MONOTONIC lies between two, and while the kernel does not call the clock synchronized none goes.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from time import time_ns
from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta, Struct
from msgspec.structs import replace

from gputop.model.frame import SECOND_NS, Frame, Header
from gputop.model.ranges import UnixSeconds
from gputop.recording.format import (
    KIND_FINDINGS,
    KIND_FRAMES,
    MAGIC,
    MAX_BLOCK_BYTES,
    MINUTES,
    SECONDS,
    TICKS,
    TIERS,
    FormatError,
    restated,
    unpack_header,
)
from gputop.recording.scan import Contents, Index, open_regular, pack_index, payload_at, place_at, places
from gputop.recording.writer import NO_LIMIT, RUN_BYTES, DiskError, Rotation, Tell, Writer, copied
from gputop.system.clock import is_synchronized
from gputop.system.decoding import BROKEN
from gputop.system.errors import UserError, starting
from gputop.system.output import UNFINISHED, create, write_all
from gputop.system.text import clean, file_size

AROUND_NS = 30 * SECOND_NS  # before and after an incident or a marker, where ticks stay
LONG_NS = 300 * SECOND_NS  # of a longer incident the ticks of its beginning and of its end stay: a choice
FRESH_NS = 3600 * SECOND_NS  # before now, where ticks and seconds go late: a choice
START, TARGET = 0.6, 0.36  # shares of the bound at which a pass begins, and that it leaves: files and a copy stay within the bound together
GROWTH = 1 / 64  # share of the bound by which the file may grow during a pass; then recording waits for it
MOST_SHARE = 0.97  # of the bound that is used while passes fail; then recording pauses
AGE_STEP = 1 / 32  # of the time to keep that goes at once, as it is exceeded
AGE_EVERY_NS = 3600 * SECOND_NS  # of CLOCK_MONOTONIC between two such steps, and before the first one of a start: a choice
LEAST_STEP_NS = 2 * AGE_EVERY_NS  # that a step may take: more than is recorded between two
MOST_FILES = 64  # of one name, however small: a service that restarts over and over makes one each time
PAUSE_S = 0.02  # s that a pass rests after each MiB: 50 MB/s at most, for recorder and collector share a CPU quota in the systemd unit
_SCANNED = 500  # blocks between two rests, 2 ms
_PERIOD_NS = {TICKS: 0, SECONDS: SECOND_NS, MINUTES: 66 * SECOND_NS}  # before its own time, that a merged frame covers
_GAP_NS = {TICKS: 3 * SECOND_NS, SECONDS: 13 * SECOND_NS, MINUTES: 70 * SECOND_NS}  # from a chunk's last piece to the next chunk, at most
_OPEN = 9  # rank of the chunks that may still grow
Span = tuple[int, int]


class Sized(Struct, frozen=True):
    """A chunk, with its times in ns since 1970."""

    file: int  # number
    offset: int
    tier: int
    start_ns: int
    end_ns: int
    size: int  # bytes
    is_told: bool  # whether a coarser tier covers its whole time
    is_open: bool  # whether it may still grow


def chosen(chunks: Sequence[Sized], spans: Sequence[Span], now_ns: int, since_ns: int, target: float) -> list[Sized]:
    """The chunks that stay: none that ended before ``since_ns``, and ``target`` bytes at most."""
    near: list[Span] = []
    for start, end in spans:
        parts = [(start, end)] if end - start <= 2 * LONG_NS else [(start, start + LONG_NS), (end - LONG_NS, end)]
        near += [(begin - AROUND_NS, until + AROUND_NS) for begin, until in parts]
    merged = _merged(near)
    left = [chunk for chunk in chunks if chunk.is_open or chunk.end_ns >= since_ns]
    total, gone = sum(chunk.size for chunk in left), set[tuple[int, int]]()
    for rank, _, chunk in sorted(((_rank(chunk, merged, now_ns), chunk.start_ns, chunk) for chunk in left), key=lambda one: one[:2]):
        if total <= target or rank == _OPEN:
            break
        gone.add((chunk.file, chunk.offset))
        total -= chunk.size
    return [chunk for chunk in left if (chunk.file, chunk.offset) not in gone]


def _rank(chunk: Sized, near: Sequence[Span], now_ns: int) -> int:
    """The order in which chunks go."""
    if chunk.is_open:
        return _OPEN
    if chunk.tier == MINUTES:
        return 6
    if not chunk.is_told:
        return 7
    i = bisect_right(near, chunk.end_ns, key=lambda span: span[0]) - 1
    if i >= 0 and near[i][1] >= chunk.start_ns:
        return 4 + chunk.tier
    return chunk.tier + 2 * (chunk.end_ns > now_ns - FRESH_NS)


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _is_within(span: Span, spans: Sequence[Span]) -> bool:
    i = bisect_right(spans, span[0], key=lambda one: one[0]) - 1
    return i >= 0 and spans[i][1] >= span[1]


class _IncidentTimes(Struct):
    start_unix_s: UnixSeconds
    end_unix_s: UnixSeconds | None = None


class _ExplanationPart(Struct):
    incidents: Annotated[list[_IncidentTimes], Meta(max_length=100_000)]


class _FindingsPart(Struct):
    """The part of `gputop.stream.kept` that is read here."""

    explanation: _ExplanationPart


_decode_findings = msgspec.msgpack.Decoder(_FindingsPart).decode


class _File:
    """A recording of the set. Raises OSError, and UserError if it is no recording."""

    def __init__(self, number: int, path: str, fd: int, size: int) -> None:
        self.number, self.path, self.fd, self.size = number, path, fd, size
        self.contents = Contents.load(fd, size)
        place = self.contents.header
        if place is None:
            raise FormatError("its header is missing")
        self.header = unpack_header(payload_at(fd, place))
        self.late_ns = 0  # that its clock is behind the end of the file before it: a clock that fell back makes nothing older
        self._runs: list[tuple[int, int, int]] = []  # adjacent blocks of a chunk: where they begin and end, and where the chunk begins

    def unix_ns(self, t_ns: int) -> int:
        """A moment (CLOCK_MONOTONIC) in ns since 1970, after all of the files before it."""
        return self.header.unix_ns_of(t_ns) + self.late_ns

    @property
    def end_ns(self) -> int:
        """Time of the recording's last moment, in ns since 1970."""
        return self.unix_ns(max(self.contents.end_ns, self.header.t_ns))

    def spans(self, now_ns: int) -> Iterator[Span]:
        """(start, end) of incidents and markers but for those that count steps, in ns since 1970. An open incident ends ``now_ns``."""
        times = [mark.t_ns for mark in self.contents.marks if not mark.gap_reason and mark.step is None]
        times += [place.head.t_ns for place in self.contents.marked]
        yield from ((unix_ns, unix_ns) for unix_ns in map(self.unix_ns, times))
        place = place_at(self.fd, self.contents.findings) if self.contents.findings else None
        if place is not None and place.head.kind == KIND_FINDINGS:
            with suppress(FormatError, zstandard.ZstdError, *BROKEN):
                data = zstandard.ZstdDecompressor().decompress(payload_at(self.fd, place), max_output_size=MAX_BLOCK_BYTES)
                for one in _decode_findings(data).explanation.incidents:
                    end_ns = now_ns if one.end_unix_s is None else int(one.end_unix_s * 1e9) + self.late_ns
                    yield int(one.start_unix_s * 1e9) + self.late_ns, end_ns

    def sized(self, is_open: bool, rest: Callable[[], None]) -> list[Sized]:
        """Chunks of the recording with their sizes and times."""
        begins = {chunk.offset for chunks in self.contents.chunks.values() for chunk in chunks}
        sizes, owner = Counter[int](), dict[int, int]()
        for i, place in enumerate(places(self.fd, len(MAGIC), self.size)):
            if place.head.kind == KIND_FRAMES and place.head.tier in TIERS:
                tier = place.head.tier
                first = self.contents.chunks[tier][0].offset if self.contents.chunks[tier] else place.offset
                owner[tier] = place.offset if place.offset in begins else owner.get(tier, first)
                if self._runs and self._runs[-1][1:] == (place.offset, owner[tier]):
                    self._runs[-1] = self._runs[-1][0], place.end, owner[tier]
                else:
                    self._runs.append((place.offset, place.end, owner[tier]))
                sizes[owner[tier]] += place.end - place.offset
            if i % _SCANNED == 0:
                rest()
        told: list[Span] = []
        found: list[Sized] = []
        unix = self.unix_ns
        for tier in (MINUTES, SECONDS, TICKS):
            chunks = self.contents.chunks[tier]
            ends = [b.t_ns if b.t_ns - a.last_ns <= _GAP_NS[tier] else a.last_ns for a, b in pairwise(chunks)]
            ends += [chunk.last_ns for chunk in chunks[-1:]]
            for chunk, end in zip(chunks, ends, strict=True):
                found.append(Sized(
                    self.number, chunk.offset, tier, unix(chunk.t_ns), unix(end), sizes[chunk.offset], _is_within((chunk.t_ns, end), told),
                    is_open and chunk is chunks[-1],
                ))  # fmt: skip
            told = _merged([*told, *((chunk.t_ns - _PERIOD_NS[tier], end) for chunk, end in zip(chunks, ends, strict=True))])
        return found

    def copy(self, target: int, kept: set[int], since_ns: int, rest: Callable[[], None]) -> tuple[int, int, dict[int, int]]:
        """Write the ``kept`` chunks, by their offsets, and an index.

        Returns the offsets of index and findings, and the new offset of each chunk and of the end.
        """
        write_all(target, MAGIC + 2 * restated(self.header))
        at, offsets, runs = os.lseek(target, 0, os.SEEK_CUR), dict[int, int](), list[tuple[int, int]]()
        for start, end, owner in self._runs:
            if owner in kept:
                offsets.setdefault(owner, at)
                at += end - start
                if runs and runs[-1][1] == start:
                    runs[-1] = runs[-1][0], end
                else:
                    runs.append((start, end))
        findings_at, place = 0, place_at(self.fd, self.contents.findings) if self.contents.findings else None
        if place is not None and place.head.kind == KIND_FINDINGS:
            findings_at = at
            runs.append((place.offset, place.end))
        begun = 0
        for start, end in runs:
            for reached in copied(self.fd, start, end, target):
                begun += reached - start
                start = reached
                if begun >= RUN_BYTES:
                    os.fdatasync(target)
                    rest()
                    begun = 0
        chunks = [replace(one, offset=offsets[one.offset]) for tier in TIERS for one in self.contents.chunks[tier] if one.offset in offsets]
        chunks.sort(key=lambda chunk: chunk.offset)
        marks = [mark for mark in self.contents.marks if self.unix_ns(mark.t_ns) >= since_ns]
        write_all(target, restated(self.header))
        index_at = os.lseek(target, 0, os.SEEK_CUR)
        end_ns = max([self.contents.end_ns, *(chunk.last_ns for chunk in chunks)])
        write_all(target, pack_index(Index(0, chunks, marks, end_ns, findings_at)))
        os.fsync(target)
        offsets[self.size] = os.lseek(target, 0, os.SEEK_CUR)
        return index_at, findings_at, offsets


class Age(Struct, frozen=True):
    """Rules by which a pass removes what is too old."""

    keep_ns: int
    run_ns: int  # CLOCK_MONOTONIC since this start began to record
    wall_ns: int  # the wall clock as it reads now
    own: frozenset[str]  # files of this start, with the clock in question
    is_due: bool  # whether a step may be taken now

    def since_ns(self, oldest_ns: int, now_ns: int) -> int:
        """Time (ns since 1970) before which everything is removed: at most one step after the oldest; 0: nothing is."""
        if not self.is_due or oldest_ns >= now_ns - self.keep_ns:
            return 0
        step_ns = int(self.keep_ns * AGE_STEP)
        return min(now_ns - self.keep_ns + step_ns, oldest_ns + max(step_ns, LEAST_STEP_NS))


class _Cancelled(Exception):
    """The recording ends during a pass."""


class _Pass(threading.Thread):
    """Rewrites the files of a set that are to lose chunks; the last file still grows."""

    def __init__(self, paths: Sequence[str], writer: Writer, *, size: int, t_ns: int, bound: int, age: Age) -> None:
        """``paths`` in their order. ``size``: of the last one, as it was settled. ``t_ns``: CLOCK_MONOTONIC."""
        super().__init__(name="keep", daemon=True)
        self._paths, self._size, self._t_ns, self._bound, self._age = paths, size, t_ns, bound, age
        self._fd, self._path = writer.fd, writer.path
        self._cancelled = threading.Event()
        self.error: Exception | None = None
        self.copy: tuple[str, int, int, int, dict[int, int]] | None = None  # path, descriptor, and as `_File.copy`; none: it stays as it is
        self.others_bytes = 0
        self.oldest_ns = t_ns  # end of the oldest chunk, by CLOCK_MONOTONIC as if it had always run

    def run(self) -> None:
        """The thread."""
        opened: list[int] = []
        try:
            self._work(opened)
        except (OSError, UserError, _Cancelled) as error:
            self.error = error
        finally:
            for fd in opened:
                os.close(fd)

    def cancel(self) -> None:
        """End it, and remove what it has begun."""
        self._cancelled.set()
        self.join()
        if self.copy is not None:
            os.close(self.copy[1])
            _remove(self.copy[0])

    def _rest(self) -> None:
        if self._cancelled.wait(PAUSE_S):
            raise _Cancelled

    def _work(self, opened: list[int]) -> None:
        files = self._open_others(opened)
        files.append(_File(len(files), self._path, self._fd, self._size))
        for before, file in pairwise(files):
            file.late_ns = max(0, before.end_ns - file.header.unix_ns)
        now_ns = files[-1].unix_ns(self._t_ns)
        chunks = [chunk for file in files for chunk in file.sized(file is files[-1], self._rest)]
        spans = [span for file in files for span in file.spans(now_ns)]
        total = sum(file.size for file in files)
        earlier_ns = max((file.end_ns for file in files if file.path not in self._age.own), default=now_ns)
        sure_ns = min(now_ns, self._age.wall_ns, earlier_ns + self._age.run_ns)
        since_ns = self._age.since_ns(min((chunk.end_ns for chunk in chunks), default=sure_ns), sure_ns)
        target = total if total <= START * self._bound else TARGET * self._bound
        left = chosen(chunks, spans, now_ns, since_ns, target)
        few = {file.number for file in files[-MOST_FILES:]}
        left = [chunk for chunk in left if chunk.file in few]
        for file in files:
            kept = {chunk.offset for chunk in left if chunk.file == file.number}
            if len(kept) == sum(chunk.file == file.number for chunk in chunks) and kept:
                continue
            if not kept and file is not files[-1]:
                _remove(file.path)
                continue
            self._rewrite(file, kept, since_ns, is_last=file is files[-1])
        self.others_bytes = sum(os.path.getsize(file.path) for file in files[:-1] if os.path.exists(file.path))
        self.oldest_ns = self._t_ns - max(0, sure_ns - min((chunk.end_ns for chunk in left), default=sure_ns))

    def _open_others(self, opened: list[int]) -> list[_File]:
        """Open the other files of the rotation, in their order. A file that is no recording of this format, or that still grows, is left
        alone and does not count."""
        files: list[_File] = []
        for path in self._paths:
            if path == self._path:
                continue
            try:
                fd = open_regular(path)
                opened.append(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                files.append(_File(len(files), path, fd, os.fstat(fd).st_size))
            except (OSError, UserError):
                continue
        return files

    def _rewrite(self, file: _File, kept: set[int], since_ns: int, is_last: bool) -> None:
        part = file.path + UNFINISHED
        _remove(part)
        fd = create(part)
        try:
            copy = file.copy(fd, kept, since_ns, self._rest)
            if is_last:
                self.copy = part, fd, *copy
                return
            os.rename(part, file.path)
        except BaseException:
            os.close(fd)
            _remove(part)
            raise
        os.close(fd)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


class Keeping(Rotation):
    """Recordings of one name, one for each start, of the last ``keep_ns`` and of at most ``max_bytes`` in all."""

    def __init__(self, path: str, header: Header, *, max_bytes: int, keep_ns: int, begin: Callable[[], Tell | None] = lambda: None) -> None:
        self._bound, self._keep_ns = max_bytes, keep_ns
        self._first = Path(path)
        known = self._known()
        number = max(known, default=0) + 1
        super().__init__(path if number == 1 else self.name_of(number), header, NO_LIMIT, 0, begin)
        self._first, self._count = Path(path), number
        self._others_bytes = sum(os.path.getsize(one) for one in known.values())
        for one in known.values():
            _remove(one + UNFINISHED)
        self._pass: _Pass | None = None
        self._next_bytes = 0 if known else self._start_bytes  # of this file, at which a pass begins
        self._began_ns: int | None = None  # first frame of this start; as all times here CLOCK_MONOTONIC
        self._age_due_ns = 0  # from when on the next step may be taken
        self._oldest_ns = 0  # end of the oldest chunk; of an earlier boot's below 0
        self._waits_for_clock = False  # whether the step waits for a synchronized clock
        self._stalled = ""  # why the last pass failed

    def open_writer(self, path: str, header: Header) -> Writer:
        """A writer for the next file, with a tier of minutes."""
        return Writer(path, header, self._begin(), minutes=True)

    def add(self, frame: Frame) -> None:
        """Add a frame, as `Writer.add`. A pass may begin or end at a key frame."""
        if frame.key:
            self.writer.flush()
            self._care(frame.t_ns)
        super().add(frame)

    def close(self) -> None:
        """End the pass, and close as `Writer.close`."""
        self._end_pass()
        super().close()

    def summary(self) -> str:
        """Path and size of the recording, for people."""
        others = f", and {file_size(self._others_bytes)} of earlier starts" if self._others_bytes else ""
        waits = "; what is too old waits until the kernel calls the clock synchronized" if self._waits_for_clock else ""
        return f"{clean(self.writer.path)} ({file_size(self.writer.size)}{others}){waits}"

    @property
    def _start_bytes(self) -> int:
        return int(START * self._bound) - self._others_bytes

    def _care(self, t_ns: int) -> None:
        if self._began_ns is None:
            self._began_ns = self._oldest_ns = t_ns
            self._age_due_ns = t_ns + AGE_EVERY_NS
        size, most = self.writer.size, MOST_SHARE * self._bound - self._others_bytes
        is_due = self._is_due(t_ns)
        if self._pass is None and (size >= min(most, self._next_bytes) or is_due):
            self._next_bytes, self._age_due_ns = size, t_ns + AGE_EVERY_NS if is_due else self._age_due_ns
            age = Age(self._keep_ns, t_ns - self._began_ns, time_ns(), frozenset(self._kept), is_due)
            paths = [*self._known().values()]
            self._pass = _Pass(paths, self.writer, size=self.writer.settle(), t_ns=t_ns, bound=self._bound, age=age)
            try:
                with starting():
                    self._pass.start()
            except UserError:  # tried again as it has grown
                self._pass = None
                self.writer.unsettle()
                self._next_bytes = size + int(GROWTH * self._bound)
        if self._pass is not None:
            if size > min(most, self._next_bytes + GROWTH * self._bound):
                self._pass.join()
            if not self._pass.is_alive():
                self._take(self._pass)
        if self.writer.size + self._others_bytes > MOST_SHARE * self._bound:
            raise UserError(self._stalled or "no more room within --max-size")

    def _is_due(self, t_ns: int) -> bool:
        """True if what is too old may go now."""
        if t_ns < self._age_due_ns or self._oldest_ns >= t_ns - self._keep_ns:
            return False
        self._waits_for_clock = not is_synchronized()
        return not self._waits_for_clock

    def _take(self, done: _Pass) -> None:
        """Go on in the file that a pass has written."""
        self._pass, error = None, done.error
        if error is None and done.copy is not None:
            try:
                self.writer.move(*done.copy)
            except OSError as failed:
                error = failed
                done.cancel()
        self.writer.unsettle()
        if error is None:
            self._others_bytes, self._oldest_ns, self._stalled = done.others_bytes, done.oldest_ns, ""
        else:
            self._stalled = str(DiskError(self.writer.path, error) if isinstance(error, OSError) else error)
        self._next_bytes = max(self._start_bytes, self.writer.size + int(GROWTH * self._bound))

    def _end_pass(self) -> None:
        running, self._pass = self._pass, None
        if running is not None:
            running.cancel()
            self.writer.unsettle()

    def _turn(self) -> None:
        self._end_pass()
        self._others_bytes += self.writer.size
        super()._turn()
        self._next_bytes = self._start_bytes

    def _known(self) -> dict[int, str]:
        """The files of this name, by their numbers."""
        pattern = re.compile(rf"{re.escape(self._first.stem)}(?:\.(\d{{1,9}}))?{re.escape(self._first.suffix)}")
        try:
            names = os.listdir(self._first.parent)
        except OSError:
            return {}
        found = {int(match[1] or 1): str(self._first.with_name(name)) for name in names if (match := pattern.fullmatch(name))}
        return {number: found[number] for number in sorted(found) if os.path.isfile(found[number])}
