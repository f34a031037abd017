"""The journal: what an experiment has changed, written before it is changed, so that it can be undone whoever dies.

One file for each experiment in ``$XDG_STATE_HOME/gputop/experiments`` (0700): a header, then a line for each `Record`. Each line begins
with its checksum. A last line without its end was being written when the writer died, so its change was not made. Whoever works with a
journal holds an flock on it: the experiment and its guardian together; without one it is a leftover. It is removed once all is undone.
Settings of processes and control groups do not outlast a boot, so a journal of an earlier boot has nothing to undo.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

import msgspec
from msgspec import Struct

from gputop.experiments.change import DEVICE, FILE, SETTINGS, Record, restore
from gputop.experiments.processes import why_no_pids
from gputop.experiments.subjects import inherited

SUFFIX = ".journal"
VERSION = 1  # of what is written
MOST_BYTES = 1 << 26  # of a journal: 300,000 threads
TRY_S, PAUSE_S = 2.0, 0.1  # s that undoing is tried again where the kernel refuses (a memory limit below what is in use), and between tries

PASSES = 8  # at most, after that time, while more are found who inherited a setting (guess)
CLEAR = 2  # passes in a row that find nobody: one misses the child of a process that ended while /proc was listed


class Header(Struct, frozen=True):
    """Where and when a journal was written."""

    says: str  # of the plan
    boot: str  # /proc/sys/kernel/random/boot_id
    host: str
    pid_namespace: int  # inode: pids mean nothing in another one
    since_ticks: int  # clock ticks since boot: who was born later may have inherited a setting
    unix_s: float
    version: int = VERSION


class Damaged(OSError):
    """It is not as it was written, or not ours: nothing of it is applied."""


class Leftover(Struct, frozen=True):
    """A journal that nobody works with any more."""

    path: str
    says: str  # of the plan; empty where it cannot be read
    unix_s: float | None
    problem: str = ""  # why it cannot be undone


class Journal:
    """An open journal. ``fd`` is locked, and stays so in every process that inherits it."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def undo(self, try_s: float) -> list[str]:
        """Put back what it names, see `undo`. Raises Damaged."""
        header, records = self.read()
        return undo(header.since_ticks, records, try_s)

    def append(self, records: Iterable[Record]) -> None:
        """Write the old values. Raises OSError (a full disk): then nothing may be changed."""
        data = b"".join(map(_line, records))
        done = os.write(self.fd, data) if data else 0
        if done != len(data):
            os.ftruncate(self.fd, os.fstat(self.fd).st_size - done)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @property
    def removed(self) -> bool:
        """Whether all was undone or kept: the file has no name any more."""
        return os.fstat(self.fd).st_nlink == 0

    def remove(self) -> None:
        """Nothing is left to undo."""
        if not self.removed:
            os.unlink(self.path)

    def read(self) -> tuple[Header, list[Record]]:
        """Raises Damaged."""
        data = os.pread(self.fd, MOST_BYTES, 0)
        lines = data.split(b"\n")[:-1]
        try:
            header = msgspec.json.decode(_checked(lines[0]), type=Header)
            if header.version != VERSION:
                raise Damaged(f"{self.path} was written by another version of gputop: put it back with that one")
            records = [msgspec.json.decode(_checked(line), type=Record) for line in lines[1:]]
            if any(record.setting not in (FILE, DEVICE, *SETTINGS) for record in records):
                raise ValueError
            return header, list({record.subject: record for record in records}.values())  # of each subject the last
        except (ValueError, IndexError):
            raise Damaged(f"{self.path} is damaged: look at it, put back by hand what it names, and remove it") from None


def folder() -> str:
    """Where journals lie."""
    from gputop.system.config import state_folder

    return os.path.join(state_folder(), "experiments")


def create(says: str) -> Journal:
    """A new journal with its header, locked. Raises OSError with one line: no directory of ours, a full or read-only disk."""
    path = os.path.join(_own_folder(), f"{time.time_ns()}-{os.getpid()}{SUFFIX}")
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OSError(f"no experiment: the journal of old values cannot be written: {path}: {error.strerror}") from None
    header = Header(says, boot_id(), os.uname().nodename, _pid_namespace(), int(time.clock_gettime(time.CLOCK_BOOTTIME) * _HZ), time.time())
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        data = _line(header)
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        os.unlink(path)
        os.close(fd)
        raise OSError(f"no experiment: the journal of old values cannot be written: {path}: {error.strerror}") from None
    return Journal(path, fd)


def leftovers() -> list[Leftover]:
    """Journals of this machine that nobody works with: the experiment and its guardian both died.

    Those of an earlier boot, and those of experiments that had not changed anything yet, are removed.
    """
    found = []
    for path in _paths():
        try:
            journal = _open(path)
        except Damaged as error:
            found.append(Leftover(path, "", None, str(error)))
            continue
        except OSError:
            continue
        try:
            header, records = journal.read()
            is_now = header.boot == boot_id()
            if not is_now and header.host != os.uname().nodename:
                continue  # another machine that shares this folder
            if not is_now or not records:
                journal.remove()
            elif header.pid_namespace == _pid_namespace():
                found.append(Leftover(path, header.says, header.unix_s))
        except Damaged as error:
            found.append(Leftover(path, "", None, str(error)))
        finally:
            os.close(journal.fd)
    return found


def in_use() -> bool:
    """Whether an experiment with a journal here is under way on this machine, whatever its $TMPDIR."""
    for path in _paths():
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(Damaged):
                if Journal(path, fd).read()[0].boot == boot_id():
                    return True
        except OSError:
            continue
        finally:
            os.close(fd)
    return False


def undo_leftovers() -> list[str]:
    """Undo all leftovers; what came of each, in a line."""
    told = []
    for left in leftovers():
        if problem := left.problem or why_no_pids():
            told.append(problem)
            continue
        try:
            journal = _open(left.path)
        except OSError:
            continue  # somebody else is at it
        try:
            if failed := journal.undo(TRY_S):
                told.append(f"{left.says}: not all could be put back: {failed[0]}")
            else:
                journal.remove()
                told.append(f"{left.says}: put back")
        except OSError as error:
            told.append(str(error))
        finally:
            os.close(journal.fd)
    return told


def undo(since_ticks: int, records: list[Record], try_s: float) -> list[str]:
    """Put everything back, the last change first, and tell what could not be, in words; tries again for ``try_s``."""
    until = time.monotonic() + try_s
    left, failed = list(reversed(records)), list[tuple[Record, str]]()
    clear = 0
    for passes in count(1):
        failed = [(record, why) for record in left if (why := _why_not_restored(record))]
        heirs, unseen = _heirs(records, since_ticks)
        left = [record for record, _why in failed] + heirs
        clear = 0 if heirs or unseen else clear + 1
        if (clear >= CLEAR and not failed) or (time.monotonic() >= until and (clear >= CLEAR or passes >= PASSES)):
            break
        if failed or unseen:
            time.sleep(PAUSE_S)
    return [*(why for _record, why in failed), *unseen]


def _heirs(records: list[Record], since_ticks: int) -> tuple[list[Record], list[str]]:
    """`inherited`, and in words why they could not be found."""
    try:
        return inherited(records, since_ticks), []
    except OSError as error:
        return [], [f"who began meanwhile cannot be seen: {error.strerror or error}"]


def _why_not_restored(record: Record) -> str:
    """Put one back; empty if that is done, or there is nothing any more to put it back to."""
    try:
        restore(record)
    except OSError as error:
        return f"{record.path or f'{record.setting} of {record.tid}'} to {record.old}: {error.strerror or error}"
    return ""


def boot_id() -> str:
    """Of this boot of the kernel."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


_HZ = os.sysconf("SC_CLK_TCK")


def _line(entry: Struct) -> bytes:
    data = msgspec.json.encode(entry)
    return b"%08x %s\n" % (zlib.crc32(data), data)


def _checked(line: bytes) -> bytes:
    checksum, _, data = line.partition(b" ")
    if int(checksum, 16) != zlib.crc32(data):
        raise ValueError
    return data


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _paths() -> list[str]:
    try:
        return sorted(os.path.join(folder(), name) for name in os.listdir(folder()) if name.endswith(SUFFIX))
    except OSError:
        return []


def _open(path: str) -> Journal:
    """Lock a journal that is there. Raises BlockingIOError if somebody works with it, Damaged if it is not ours."""
    _check_folder(os.path.dirname(path))
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(fd)
    try:
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077 or found.st_nlink > 1:
            raise Damaged(f"{path} was not written by this user alone: it is not applied; remove it")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except OSError:
        os.close(fd)
        raise
    return Journal(path, fd)


def _own_folder() -> str:
    """The folder, made if it is missing. Raises OSError with one line."""
    path = folder()
    try:
        for one in (os.path.dirname(path), path):
            os.makedirs(os.path.dirname(one), mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(one, 0o700)
            _check_own(one)
    except Damaged:
        raise
    except OSError as error:
        raise OSError(f"no experiment: {path} cannot be made: {error.strerror}") from None
    return path


def _check_folder(path: str) -> None:
    """Raises Damaged if others may write there."""
    _check_own(os.path.dirname(path))
    _check_own(path)


def _check_own(path: str) -> None:
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Damaged(f"{path} must be a directory of your own, which only you may write: set XDG_STATE_HOME to another place")
