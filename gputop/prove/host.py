"""Lock and journals that all experiments of a host share: one lock for all users and containers, a folder of journals for each user.

Neither depends on $TMPDIR, $XDG_STATE_HOME or a home. The lock is the namespace of clocks that nearly all processes of a host share, as a
file of /proc, which cannot be removed or replaced. A folder lies in the first of `PLACES` where its user may make one; all are searched,
and a folder that others could have made or changed is ignored. It imports little.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import NamedTuple

LOCKS = ("/proc/self/ns/time", "/proc/self/ns/user")  # the first that is there: since Linux 5.6; the namespace of users
PLACES = ("/run", "/run/lock", "/var/tmp", "/tmp", "/dev/shm")  # folders of root: written by root alone, or with the sticky bit
PREFIX = "gputop-experiments-"  # name of a user's folder, before the uid


class JournalFolder(NamedTuple):
    """A folder of journals."""

    path: str
    uid: int


def open_lock() -> int:
    """The descriptor of the host's lock, which is not taken yet. Raises OSError."""
    path = next(filter(os.path.exists, LOCKS), LOCKS[0])
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def is_locked(lock: int) -> bool:
    """Take the lock; returns whether it is ours now. Raises OSError if there are no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holders(lock: int) -> list[int]:
    """Pids that hold or await the lock, from /proc/locks: that of the process that took it, though its child may hold it by now."""
    own, found = os.fstat(lock), []
    where = f"{os.major(own.st_dev):02x}:{os.minor(own.st_dev):02x}:{own.st_ino}".encode()
    with suppress(OSError, ValueError, IndexError), open("/proc/locks", "rb") as file:
        for line in file:
            words = [word for word in line.split() if word != b"->"]
            if words[1] == b"FLOCK" and words[5] == where and int(words[4]) > 0:
                found.append(int(words[4]))
    return found


def folder_of(uid: int) -> list[JournalFolder]:
    """The folders of a user, as far as they are there."""
    found = (JournalFolder(os.path.join(place, f"{PREFIX}{uid}"), uid) for place in PLACES)
    return [folder for folder in found if not why_not(folder)]


def folders() -> list[JournalFolder]:
    """Journal folders that this user may undo: the user's own; for root all users', root's first."""
    own = folder_of(os.geteuid())
    if os.geteuid() != 0:
        return own
    return own + [folder for folder in everybodys() if folder.uid != 0]


def everybodys() -> list[JournalFolder]:
    """Trusted journal folders of all users."""
    found = []
    for place in PLACES:
        with suppress(OSError):
            for name in sorted(os.listdir(place)):
                uid = name.removeprefix(PREFIX)
                if uid != name and uid.isascii() and uid.isdecimal():
                    found.append(JournalFolder(os.path.join(place, name), int(uid)))
    return [folder for folder in found if not why_not(folder)]


def names(folder: JournalFolder) -> list[str]:
    """Names of the files in the folder; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder.path))
    except OSError:
        return []


def make_folder() -> JournalFolder:
    """The own folder, made if it is missing. Raises OSError with one line."""
    uid, problems = os.geteuid(), []
    for place in PLACES:
        folder = JournalFolder(os.path.join(place, f"{PREFIX}{uid}"), uid)
        if why_not_in(place):
            continue
        try:
            with suppress(FileExistsError):
                os.mkdir(folder.path, 0o755)
                os.chmod(folder.path, 0o755)  # whatever the umask: all users may see its names
            if not (why := why_not(folder)):
                return folder
            problems.append(why)
        except OSError as error:
            if error.errno != errno.EACCES:
                problems.append(f"{folder.path} cannot be made: {error.strerror}")
    raise OSError("; ".join(problems[:1]) or f"no folder in which all users may write: {', '.join(PLACES)}")


def why_not(folder: JournalFolder) -> str:
    """Why it is no folder that its user alone could have made and may change; empty if it is."""
    place = os.path.dirname(folder.path)
    if why := why_not_in(place):
        return why
    try:
        found = os.lstat(folder.path)
    except OSError as error:
        return f"{folder.path}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != folder.uid or found.st_mode & 0o022:
        return f"{folder.path} is not a folder that only uid {folder.uid} may write: remove it"
    return ""


def why_not_in(place: str) -> str:
    """The reason why no folder in this place is safe from other users; empty if they are."""
    try:
        found = os.stat(place)
    except OSError as error:
        return f"{place}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0 or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
        return f"{place} is not root's, or others may rename there what is not theirs"
    return ""
