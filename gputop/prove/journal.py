"""The journal of an experiment: each change is written down before it is made, so that it can be undone whichever process is killed.

One file (0600) for each experiment in the folder of its user (`gputop.prove.host`): a header, then a line for each `Record`, of which
the last of a subject is in force. Each line begins with its checksum. A last line without its end was being written when the writer died,
so its change was not made. A process that works with a journal holds an flock on it: the experiment and its guardian together; without a
lock it is a leftover. It is removed once all is undone. Settings of processes and control groups do not outlast a boot, so a journal of an
earlier boot has nothing to undo.

Root undoes what other users' experiments left behind as those users (`_as`): a journal that another user could write does nothing that its
user could not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import msgspec
from msgspec import Struct

from gputop.prove import host
from gputop.prove.change import DEVICE, FILE, NAMED, SETTINGS, THEIRS, Record, read_value, restore
from gputop.prove.processes import why_no_pids
from gputop.prove.subjects import inherited
from gputop.system.decoding import BROKEN

SUFFIX = ".journal"
VERSION = 1  # of what is written
MOST_BYTES = 1 << 26  # of a journal: 300,000 threads
TRY_S, PAUSE_S = 2.0, 0.1  # s that undoing is tried again where the kernel refuses (a memory limit below what is in use), and between tries

_LINE, _LINES, _ANSWER_BYTES = 1000, 60, 1 << 16  # characters, lines, bytes of a child's answer: what fits into a pipe
UNWRITTEN_S = 60.0  # s after which a journal without a header has no writer any more (guess)
PASSES = 8  # passes at most after that time, while more heirs of a setting are found (guess)
CLEAR = 4  # passes in a row that find no process: each may miss the child of a process that ended while /proc was listed (guess)


class JournalHeader(Struct, frozen=True):
    """Time and place at which a journal was written."""

    says: str  # of the plan
    boot: str  # /proc/sys/kernel/random/boot_id
    host: str
    pid_namespace: int  # inode: pids mean nothing in another one
    since_ticks: int  # clock ticks since boot: a process born later may have inherited a setting
    unix_s: float
    version: int = VERSION


class Damaged(OSError):
    """Raised for a journal that was altered, or is not ours: it is not applied."""


class Leftover(Struct, frozen=True):
    """A journal that no process works with any more."""

    path: str
    says: str  # of the plan; empty where it cannot be read
    unix_s: float | None
    uid: int
    problem: str = ""  # why it cannot be undone


Subject = tuple[str, int, int, str]  # see `Record.subject`


class Undone(Struct):
    """Result of undoing, in words; what is in neither list reads as it did before the experiment."""

    failed: list[str] = []
    theirs: dict[Subject, str] = {}  # what another program has changed since the experiment did: it is left as it is

    @property
    def told(self) -> str:
        """``all is put back`` only where that was read."""
        left = f"; {left_line(list(self.theirs.values()))}" if self.theirs else ""
        if self.failed:
            return f"not all could be put back: {self.failed[0]}{left}"
        return f"put back{left}"


def left_line(theirs: list[str]) -> str:
    """``left as it is, for another program has changed it: nice of 12 (5)``."""
    more = f" and {len(theirs) - NAMED} more" if len(theirs) > NAMED else ""
    return f"left as it is, for another program has changed it: {', '.join(theirs[:NAMED])}{more}"


class Journal:
    """An open journal. ``fd`` is locked, and stays so in every process that inherits it."""

    def __init__(self, path: str, fd: int) -> None:
        self.path, self.fd = path, fd

    def undo(self, try_s: float) -> Undone:
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
        """True if all was undone or kept: the file has no name any more."""
        return os.fstat(self.fd).st_nlink == 0

    @property
    def is_unwritten(self) -> bool:
        """True without a whole header: its writer died before any change, or is still at it."""
        return b"\n" not in os.pread(self.fd, MOST_BYTES, 0)

    def remove(self) -> None:
        """Remove the journal: nothing is left to undo."""
        if not self.removed:
            os.unlink(self.path)

    def read(self) -> tuple[JournalHeader, list[Record]]:
        """Raises Damaged."""
        data = os.pread(self.fd, MOST_BYTES, 0)
        lines = data.split(b"\n")[:-1]
        try:
            header = msgspec.json.decode(_checked(lines[0]), type=JournalHeader)
            if header.version != VERSION:
                raise Damaged(f"{self.path} was written by another version of gputop: put it back with that one")
            records = [msgspec.json.decode(_checked(line), type=Record) for line in lines[1:]]
            if any(record.setting not in (FILE, DEVICE, *SETTINGS) for record in records):
                raise ValueError
            return header, list({record.subject: record for record in records}.values())  # of each subject the last
        except (*BROKEN, IndexError):
            raise Damaged(f"{self.path} is damaged: look at it, put back by hand what it names, and remove it") from None


def create(says: str) -> Journal:
    """A new journal with its header, locked. Raises OSError with one line: no directory of ours, a full or read-only disk."""
    try:
        folder = host.make_folder()
    except OSError as error:
        raise OSError(f"no experiment: no place for the journal of old values: {error}") from None
    path = os.path.join(folder.path, f"{time.time_ns()}-{os.getpid()}{SUFFIX}")
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OSError(f"no experiment: the journal of old values cannot be written: {path}: {error.strerror}") from None
    header = JournalHeader(
        says, boot_id(), os.uname().nodename, _pid_namespace(), int(time.clock_gettime(time.CLOCK_BOOTTIME) * _HZ), time.time()
    )
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
    """Journals of this machine that no process works with and that this user may undo: the experiment and its guardian were both killed.

    Journals of an earlier boot, and of experiments that had not changed anything yet, are removed. Other users' are only checked, and count
    if they can be undone.
    """
    found = [left for folder in host.folders() for left in _leftovers_in(folder)]
    return [left for left in found if not left.problem or left.uid == os.geteuid()]


def _leftovers_in(folder: host.JournalFolder) -> list[Leftover]:
    found = []
    for path in _paths(folder):
        try:
            journal = _open(path, folder.uid)
        except Damaged as error:
            found.append(Leftover(path, "", None, folder.uid, str(error)))
            continue
        except OSError:
            continue
        try:
            if journal.is_unwritten:
                if folder.uid == os.geteuid() and time.time() - os.fstat(journal.fd).st_mtime > UNWRITTEN_S:
                    journal.remove()
                continue
            header, records = journal.read()
            is_now = header.boot == boot_id()
            if not is_now and header.host != os.uname().nodename:
                continue  # another machine that shares this folder
            if not is_now or not records:
                if folder.uid == os.geteuid():
                    journal.remove()
            elif header.pid_namespace == _pid_namespace():
                found.append(Leftover(path, header.says, header.unix_s, folder.uid))
        except Damaged as error:
            found.append(Leftover(path, "", None, folder.uid, str(error)))
        finally:
            os.close(journal.fd)
    return found


def in_use() -> bool:
    """True if an experiment is under way, or being undone, with a journal that this user may undo."""
    return any(_is_in_use(path, folder.uid) for folder in host.folders() for path in _paths(folder))


def _is_in_use(path: str, uid: int) -> bool:
    try:
        os.close(_open(path, uid).fd)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def of_others() -> list[int]:
    """Uids of the users with journals that this one may not read, so that it is not known whether these are in use."""
    own = {folder.path for folder in host.folders()}
    return sorted({folder.uid for folder in host.everybodys() if folder.path not in own and _paths(folder)})


def undo_leftovers() -> list[str]:
    """Undo all leftovers; what came of each, in a line."""
    told = []
    for folder in host.folders():
        if folder.uid == os.geteuid():
            told += _undo_in(folder)
        elif _leftovers_in(folder):
            told += [f"{line} (of uid {folder.uid})" for line in _as(folder, _undo_in)]
    return told


def _undo_in(folder: host.JournalFolder) -> list[str]:
    told = []
    for left in _leftovers_in(folder):
        if problem := left.problem or why_no_pids():
            told.append(problem)
            continue
        try:
            journal = _open(left.path, folder.uid)
        except OSError:
            continue  # another process is at it
        try:
            undone = journal.undo(TRY_S)
            if not undone.failed:
                journal.remove()
            told.append(f"{left.says}: {undone.told}")
        except OSError as error:
            told.append(str(error))
        finally:
            os.close(journal.fd)
    return told


def _as(folder: host.JournalFolder, work: Callable[[host.JournalFolder], list[str]]) -> list[str]:
    """Lines that ``work`` returns in a child process with the rights of the folder's user. Only root has such folders."""
    import codecs

    import psutil as psutil

    codecs.lookup("ascii")  # likewise
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            gid = os.lstat(folder.path).st_gid
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(folder.uid, folder.uid, folder.uid)
            lines = work(folder) if os.getresuid() == (folder.uid,) * 3 else []
            os.write(write_end, msgspec.json.encode([line[:_LINE] for line in lines[:_LINES]]))
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        data = file.read(_ANSWER_BYTES)
    os.waitpid(child, 0)
    try:
        return msgspec.json.decode(data, type=list[str])
    except BROKEN:
        return [f"{folder.path}: nothing could be put back as uid {folder.uid}"]


def undo(since_ticks: int, records: list[Record], try_s: float) -> Undone:
    """Put everything back, the last change first, and read it; tries again for ``try_s``."""
    until = time.monotonic() + try_s
    left, failed, theirs = list(reversed(records)), list[tuple[Record, str]](), dict[Subject, str]()
    clear = 0
    for passes in count(1):
        failed = [(record, why) for record in left if (why := _why_not_restored(record, theirs))]
        heirs, unseen = _heirs(records, since_ticks)
        left = [record for record, _why in failed] + heirs
        clear = 0 if heirs or unseen else clear + 1
        if (clear >= CLEAR and not failed) or (time.monotonic() >= until and (clear >= CLEAR or passes >= PASSES)):
            break
        if failed or unseen:
            time.sleep(PAUSE_S)
    return Undone([*(why for _record, why in failed), *unseen], theirs)


def _heirs(records: list[Record], since_ticks: int) -> tuple[list[Record], list[str]]:
    """`inherited`, and in words why they could not be found."""
    try:
        return inherited(records, since_ticks), []
    except OSError as error:
        return [], [f"processes that began since cannot be seen: {error.strerror or error}"]


def _why_not_restored(record: Record, theirs: dict[Subject, str]) -> str:
    """Put a record's value back; empty if that is done, its subject has ended, or another program has changed it (``theirs``)."""
    try:
        if restore(record) == THEIRS:
            theirs[record.subject] = f"{_named(record)} ({_now(record)})"
    except OSError as error:
        return f"{_named(record)} to {record.old}: {error.strerror or error}"
    return ""


def _named(record: Record) -> str:
    return record.path if record.path and record.setting != "autogroup" else f"{record.setting} of {record.tid}"


def _now(record: Record) -> str:
    try:
        return read_value(record)
    except OSError:
        return "gone"


def boot_id() -> str:
    """Id of this boot of the kernel (/proc/sys/kernel/random/boot_id); empty if it cannot be read."""
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


def _paths(folder: host.JournalFolder) -> list[str]:
    return [os.path.join(folder.path, name) for name in host.names(folder) if name.endswith(SUFFIX)]


def _open(path: str, uid: int) -> Journal:
    """Lock an existing journal of that user. Raises BlockingIOError if a process works with it, Damaged if it is not ours."""
    with _folder(os.path.dirname(path), uid) as folder:
        try:
            fd = os.open(os.path.basename(path), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    found = os.fstat(fd)
    try:
        if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mode & 0o077 or found.st_nlink > 1:
            raise Damaged(f"{path} was not written by its user alone: it is not applied; remove it")
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    except OSError:
        os.close(fd)
        raise
    return Journal(path, fd)


@contextmanager
def _folder(path: str, uid: int) -> Iterator[int]:
    """The folder's descriptor, even if its name is taken by another. Raises Damaged if it is not its user's alone."""
    if why := host.why_not(host.JournalFolder(path, uid)):
        raise Damaged(why)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(folder)
        if found.st_uid != uid or found.st_mode & 0o022:
            raise Damaged(f"{path} is another one by now")
        yield folder
    finally:
        os.close(folder)
