"""Rows of runs beside a recording: ``node.runs.jsonl`` of ``node.gputop``, ``node.2.gputop`` …, a line of JSON for each run that has ended.

`gputop record --keep` appends them, so they outlast the ticks, a kill, and files that are thinned; those that are too old go as it starts.
Whoever reads one of the recordings judges its runs beside those that ended before them. Several recorders may share the file: each locks it
(flock) while it appends, and while it puts a shorter file in its place, into which rows go that others have appended meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from gputop.diagnosis import Engine
from gputop.findings.runs import Run, from_elsewhere
from gputop.recording.reader import Recording
from gputop.recording.scan import open_regular
from gputop.system.decoding import BROKEN
from gputop.system.errors import UserError
from gputop.system.output import UNFINISHED, write_all

SUFFIX = ".runs.jsonl"
MOST_BYTES = 16 << 20  # of a file that is read: 16,000 runs of 1 KB, one each three minutes for a month (a choice)
EACH_NS = 5_000_000_000  # ns between two looks for runs that have ended
LOCKED_S, LOCK_EACH_S = 2.0, 0.01  # s for which another recorder may hold the file, milliseconds as a rule; and from one try to the next
_NUMBER = re.compile(r"\.\d{1,9}\Z")
_decode = msgspec.json.Decoder(Run).decode


def path_beside(recording: str) -> str:
    """The file of runs beside a recording."""
    stem, _ = os.path.splitext(recording)
    return _NUMBER.sub("", stem) + SUFFIX


def read(path: str) -> list[Run]:
    """The runs in a file, in order of their ends, each once; lines that are none are left out. Empty without a file."""
    try:
        with open(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - MOST_BYTES))
            lines = file.read(MOST_BYTES).split(b"\n")
    except (OSError, UserError):
        return []
    found: dict[tuple[int, int], Run] = {}
    for line in lines:
        with suppress(*BROKEN):
            one = _decode(line)
            if (known := found.get(one.process)) is None or one.step_ms is not None or known.step_ms is None:
                found[one.process] = one
    return sorted(from_elsewhere(found.values()), key=lambda one: one.end_unix_s)


def beside(recording: Recording) -> list[Run]:
    """The runs in the file beside a recording."""
    return read(path_beside(recording.first_path))


def seen(own: Iterable[Run], kept: Iterable[Run]) -> list[Run]:
    """Runs that a recording shows, and those that are kept beside it, each once, in order of their ends."""
    both = {one.process: one for part in (own, kept) for one in part}
    return sorted(both.values(), key=lambda one: one.end_unix_s)


class KeptRuns:
    """Appends the runs of a recorder's diagnosis as they end."""

    def __init__(self, recording: str, keep_s: float) -> None:
        """Reads what is there, and leaves out what has ended for longer than ``keep_s`` before the last."""
        self.path = path_beside(recording)
        self.past = read(self.path)
        self.problem = ""  # why a run could not be written
        self._written: set[tuple[int, int]] = set()
        self._due_ns = 0
        young = _young(self.past, keep_s)
        if len(young) < len(self.past):
            self.past = young
            self._write_anew(keep_s)

    def note(self, engine: Engine) -> None:
        """Append the runs that have ended since the last look."""
        if engine.fed_ns >= self._due_ns:
            self._due_ns = engine.fed_ns + EACH_NS
            self._append(engine.runs()[0])

    def end(self, engine: Engine) -> None:
        """Append all, those that last as they are now."""
        self._append([one for part in engine.runs() for one in part])

    def _append(self, found: Iterable[Run]) -> None:
        new = [one for one in found if one.process not in self._written]
        if not new:
            return
        self._written |= {one.process for one in new}
        try:
            with _held(self.path) as (fd, _):
                size = os.fstat(fd).st_size
                is_cut = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # by a kill, or a full disk
                write_all(fd, b"\n" * is_cut + _lines(new))
        except OSError as error:
            self.problem = f"runs are not kept: {self.path}: {error.strerror}"

    def _write_anew(self, keep_s: float) -> None:
        """Put a file without the old runs in the place of the file. Left to the next start where another recorder holds it for long."""
        part = self.path + UNFINISHED
        try:
            with _held(self.path) as (_, is_alone):
                if not is_alone:
                    return
                with suppress(FileNotFoundError):
                    os.unlink(part)
                with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
                    file.write(_lines(_young(read(self.path), keep_s)))
                os.rename(part, self.path)
        except OSError as error:
            self.problem = f"old runs are not removed: {self.path}: {error.strerror}"


def _young(found: list[Run], keep_s: float) -> list[Run]:
    """The runs that ended within ``keep_s`` before the last."""
    newest_s = min(time.time(), max((one.end_unix_s for one in found), default=0.0))  # one from a clock that ran ahead removes none
    return [one for one in found if one.end_unix_s >= newest_s - keep_s]


def _lines(found: Iterable[Run]) -> bytes:
    return b"".join(msgspec.json.encode(one) + b"\n" for one in found)


@contextmanager
def _held(path: str) -> Iterator[tuple[int, bool]]:
    """(descriptor of the file, to append to, whether no other recorder writes it meanwhile). Raises OSError."""
    until_s = time.monotonic() + LOCKED_S
    while True:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            seen = os.fstat(fd)
            if not stat.S_ISREG(seen.st_mode):
                raise OSError(errno.EINVAL, "it is no regular file")
            is_alone = _lock(fd, until_s)
            if time.monotonic() >= until_s or _is_at(path, seen):
                yield fd, is_alone
                return
        finally:
            os.close(fd)


def _is_at(path: str, seen: os.stat_result) -> bool:
    """True if that file still stands there; else another recorder has put a shorter one in its place."""
    try:
        return os.path.samestat(seen, os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(fd: int, until_s: float) -> bool:
    """Lock the file until it is closed; False where another recorder holds it for too long, or its file system has no locks."""
    while (error := _try_lock(fd)) == errno.EWOULDBLOCK and time.monotonic() < until_s:
        time.sleep(LOCK_EACH_S)
    return not error


def _try_lock(fd: int) -> int | None:
    """Lock the file at once; the error's number if that cannot be."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno
    return None
