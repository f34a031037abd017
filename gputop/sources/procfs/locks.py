"""Who holds a file that a process waits for: /proc/locks, and the files that the process has open.

Who waits in fcntl or flock is listed there behind the holder. Who merely asks again and again (SQLite, whatever uses LOCK_NB) is
not: it sleeps by a timer, with a file open on which somebody else holds an exclusive lock.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from dataclasses import field

from gputop.sources.procfs.files import Descriptors
from gputop.sources.procfs.files import KeptFile
from gputop.sources.procfs.tick import Tick

_CALLS = {"x86_64": (35, 230, 23, 270, 72, 73), "aarch64": (101, 115, 72, 25, 32)}
CALLS = frozenset(_CALLS.get(platform.machine(), ()))
"""nanosleep, clock_nanosleep, select, pselect6, fcntl, flock."""
OPEN_NS = 2_000_000_000
"""The files that a process has open are looked at this often."""
MOST_FILES = 256


@dataclass(slots=True)
class Held:
    """Exclusive locks on files as of one tick."""

    by_file: dict[str, int] = field(default_factory=dict)
    """``major:minor:inode`` -> pid of who holds it."""
    waited: dict[int, int] = field(default_factory=dict)
    """Pid of who waits in the kernel for such a lock -> pid of who holds it."""


class Locks:
    """Of the machine; read at most once a tick, and only when somebody asks."""

    def __init__(self, proc: str, pool: Descriptors) -> None:
        self._file = KeptFile(proc, "locks", 65_536, pool)
        self._held = Held()
        self._number = -1

    def held(self, tick: Tick) -> Held:
        """Empty where it cannot be read."""
        if tick.number != self._number:
            self._number = tick.number
            self._held = parse(self._file.read().decode("ascii", "replace"))
        return self._held

    def close(self) -> None:
        self._file.close()


def parse(text: str) -> Held:
    """Lines such as ``1: POSIX  ADVISORY  WRITE 812 08:01:99 0 EOF``; those with an arrow wait for the last one without."""
    held, holder = Held(), 0
    for line in text.splitlines():
        fields = line.split()
        waits = len(fields) > 1 and fields[1] == "->"
        kind = fields[2:] if waits else fields[1:]
        if len(kind) < 5 or not kind[3].lstrip("-").isdigit():
            continue
        pid, exclusive = int(kind[3]), kind[2] == "WRITE"
        if waits:
            if holder > 0:
                held.waited[pid] = holder
            continue
        holder = pid
        if exclusive and pid > 0:
            held.by_file[kind[4]] = pid
    return held


class OpenFiles:
    """Those of one process."""

    __slots__ = ("_files", "_folder", "_looked_ns", "_pid")

    def __init__(self, folder: str, pid: int) -> None:
        self._folder, self._pid = folder, pid
        self._files: frozenset[str] = frozenset()
        self._looked_ns = -OPEN_NS

    def locked_by(self, held: Held, t_ns: int) -> int | None:
        """The pid of another process that holds a lock which this one waits for, or keeps a file from it; None where nobody does."""
        if self._pid in held.waited:
            return held.waited[self._pid]
        others = {file: pid for file, pid in held.by_file.items() if pid != self._pid}
        if not others:
            return None
        if t_ns - self._looked_ns >= OPEN_NS:
            self._looked_ns, self._files = t_ns, _open_files(self._folder + "fd/")
        return next((others[file] for file in self._files if file in others), None)


def _open_files(folder: str) -> frozenset[str]:
    """As /proc/locks names them; what cannot be seen is left out."""
    found = set()
    try:
        for name in os.listdir(folder)[:MOST_FILES]:
            stat = os.stat(folder + name)
            found.add(f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}")
    except OSError:
        pass
    return frozenset(found)
