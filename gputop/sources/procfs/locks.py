"""Finds the process that holds a file lock which another one waits for: from /proc/locks, and the files that a process has open.

A process that waits in fcntl or flock is listed behind the holder. One that tries again and again (SQLite, LOCK_NB) is not listed: it
sleeps by a timer, with a file open on which another process holds an exclusive lock. Python's ``filelock`` even closes the file between
two tries: there siblings of the process hold the lock in turn.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct, field

from gputop.model.syscalls import syscall_numbers
from gputop.sources import parse
from gputop.sources.files import DescriptorBudget, KeptList, mounted, open_files, read_once

CALLS = syscall_numbers("nanosleep", "clock_nanosleep", "select", "pselect6", "fcntl", "flock")  # in which a process may wait for a lock
READ_NS = 90_000_000  # ns between two readings of /proc/locks: it shows a moment, and some locks are held for milliseconds
SHARE = 0.001  # of one CPU, most that reading it takes
STILL_AFTER_NS, STILL_SHARE = 5_000_000_000, 0.0003  # ns without a change after which it takes less, and how much of one CPU then
WAIT_SHARE, STILL_WAIT_SHARE = 0.1, 0.01  # most of the time that a reading keeps this thread waiting: see `Locks`
WAIT_MOST_NS = 1_000_000_000  # ns, the longest pause that this leads to
OPEN_NS = 10_000_000_000  # ns between two looks at the files that a process has open
NEWS_NS = 1_000_000_000  # ns between two looks while files are locked that were not locked at the last look
MOST_FILES = 256  # descriptors looked at of one process
_PLACE = re.compile(r"^mnt_id:\s+(\d+)\nino:\s+(\d+)$", re.MULTILINE)
SIBLINGS_NS = 10_000_000_000  # ns within which siblings that held the same lock hold it in turn
MOST_SHARED = 16  # locks with several holders that one reading looks at: each asks for the parents of some


class HeldLocks(Struct):
    """Exclusive locks on files in one reading."""

    by_file: dict[str, int] = field(default_factory=dict)  # ``major:minor:inode`` -> pid of the holder
    waited: dict[int, int] = field(default_factory=dict)  # pid that waits in the kernel for such a lock -> pid of the holder
    by_parent: dict[int, int] = field(default_factory=dict)  # parent of children that hold a lock in turn -> the child that holds it


class _RecentHolders:
    """The recent holders of each lock."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._held: dict[str, dict[int, int]] = {}  # ``major:minor:inode`` -> pid of a holder -> t_ns of the last reading that lists it

    def by_parent(self, by_file: dict[str, int], t_ns: int) -> dict[int, int]:
        """`HeldLocks.by_parent`, with this reading taken into account."""
        for file, pid in by_file.items():
            self._held.setdefault(file, {})[pid] = t_ns
        self._forget(t_ns - SIBLINGS_NS)
        shared = [(file, pid) for file, pid in by_file.items() if len(self._held[file]) > 1][:MOST_SHARED]
        return {parent: pid for file, pid in shared if (parent := self._parent_of_several(file, pid))}

    def _parent_of_several(self, file: str, pid: int) -> int:
        """Pid of the common parent of a holder and another recent holder; 0 without one."""
        others = [other for other in self._held[file] if other != pid]
        own = _parent_of(self._proc, pid)
        return own if own and any(_parent_of(self._proc, other) == own for other in others) else 0

    def _forget(self, oldest_ns: int) -> None:
        for file, holders in list(self._held.items()):
            for pid in [pid for pid, held_ns in holders.items() if held_ns < oldest_ns]:
                del holders[pid]
            if not holders:
                del self._held[file]


def _parent_of(proc: str, pid: int) -> int:
    """Pid of a process's parent; 0 if the process has ended."""
    data = read_once(f"{proc}{pid}/stat", 1024)
    return parse.stat(data).ppid if data else 0


class Locks:
    """File locks of the machine; read on demand, at most as often as the budgets of CPU time and of waiting allow.

    The kernel first makes all who take file locks wait for the reader, which takes an RCU grace period: 7 to 16 ms, up to 200 beside a load
    of 15 (measured on Linux 6.18).
    """

    def __init__(self, proc: str, pool: DescriptorBudget) -> None:
        self._file = KeptList(proc, "locks", 1 << 18, pool)
        self._text = b""
        self._held = HeldLocks()
        self._holders = _RecentHolders(proc)
        self._due_ns = self._changed_ns = 0

    def held(self, t_ns: int) -> HeldLocks:
        """The locks of the last reading, which is made again if due; empty if /proc/locks cannot be read."""
        if t_ns >= self._due_ns:
            began_ns, started = time.monotonic_ns(), time.thread_time_ns()
            self._read(t_ns)
            used_ns, took_ns = time.thread_time_ns() - started, time.monotonic_ns() - began_ns
            is_still = t_ns - self._changed_ns >= STILL_AFTER_NS
            wait_ns = min(WAIT_MOST_NS, int(took_ns / (STILL_WAIT_SHARE if is_still else WAIT_SHARE)))
            self._due_ns = t_ns + max(READ_NS, int(used_ns / (STILL_SHARE if is_still else SHARE)), wait_ns)
        return self._held

    def _read(self, t_ns: int) -> None:
        text = self._file.read()
        if text != self._text:
            self._changed_ns = t_ns
            self._text, self._held = text, parse_locks(text.decode("ascii", "replace"))
            self._held.by_parent = self._holders.by_parent(self._held.by_file, t_ns)

    def close(self) -> None:
        self._file.close()


def parse_locks(text: str) -> HeldLocks:
    """Lines such as ``1: POSIX  ADVISORY  WRITE 812 08:01:99 0 EOF``; one with an arrow waits for the last one without."""
    held, holder = HeldLocks(), 0
    for line in text.splitlines():
        waits = " -> " in line
        fields = line.replace(" -> ", " ").split()
        if len(fields) < 6 or not fields[4].lstrip("-").isdigit():
            continue
        pid = int(fields[4])
        if not waits:
            holder = pid
        if pid > 0 and waits and holder > 0:
            held.waited[pid] = holder
        elif pid > 0 and not waits and fields[3] == "WRITE":
            held.by_file[fields[5]] = pid
    return held


class OpenFiles:
    """The locked files that one process has open."""

    __slots__ = ("_checked", "_files", "_folder", "_locked", "_looked_ns", "_pid")

    def __init__(self, folder: str, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._looked_ns = -OPEN_NS
        self._locked: frozenset[str] = frozenset()  # files that were locked since the last look
        self._files: frozenset[str] = frozenset()  # files of ``_locked`` that it has open
        self._checked: tuple[HeldLocks | None, int | None] = None, None

    def locked_by(self, held: HeldLocks, t_ns: int, parent: int) -> int | None:
        """Pid of the holder of a lock that this process waits for; None without one."""
        if not held.by_file and not held.waited:
            return None
        if self._checked[0] is not held or t_ns - self._looked_ns >= OPEN_NS:
            by = held.waited.get(self._pid) or self._kept_from(held.by_file, t_ns) or held.by_parent.get(parent)
            self._checked = held, by if by != self._pid else None
        return self._checked[1]

    def _kept_from(self, locked: dict[str, int], t_ns: int) -> int | None:
        age_ns = t_ns - self._looked_ns
        is_old = age_ns >= OPEN_NS
        if locked and (is_old or (age_ns >= NEWS_NS and not self._locked.issuperset(locked))):
            self._locked = (self._files if is_old else self._locked).union(locked)
            self._looked_ns, self._files = t_ns, _open_among(self._locked, self._folder)
        return next((pid for file, pid in locked.items() if pid != self._pid and file in self._files), None)


def _open_among(locked: frozenset[str], folder: str) -> frozenset[str]:
    """Files of ``locked`` that the process has open, as far as that can be read. Before Linux 5.14 fdinfo has no inodes.

    The files themselves are not touched: a stat on a dead network mount never returns.
    """
    inodes = {file.rpartition(":")[2] for file in locked}
    opened = {(mount, inode) for mount, inode in _opened(folder) if inode in inodes}
    devices = _devices(folder) if opened else {}
    return locked.intersection(f"{devices.get(mount)}:{inode}" for mount, inode in opened)


def _opened(folder: str) -> Iterator[tuple[str, str]]:
    """(mount id, inode) of each open file that has a path (/proc/PID/fdinfo)."""
    with suppress(OSError):
        for descriptor, link in open_files(folder, MOST_FILES):
            if link.startswith("/"):
                yield from _PLACE.findall((read_once(f"{folder}fdinfo/{descriptor}", 256) or b"").decode())


def _devices(folder: str) -> dict[str, str]:
    """Mount id -> ``major:minor`` as /proc/locks writes it, in hexadecimal digits."""
    return {one.id: ":".join(f"{int(number):02x}" for number in one.device.split(":")) for one in mounted(folder + "mountinfo")}
