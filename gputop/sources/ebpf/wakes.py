"""The scheduler probe's map of wake-ups -> `Wakeup`, and the processes that feed trainers without workers.

The map has an entry for each wakee, waker and call with its descriptor or futex address (probes/sched.c). A row joins what a reader
need not distinguish: descriptors of one kind, and the short-lived futexes of a pair. It goes on when entries are deleted, so its sums never
fall.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from itertools import compress
from operator import ne
from typing import Any, TypeVar

from gputop.model.board import wakeup_key
from gputop.model.frame import SECOND_NS, Wakeup
from gputop.model.syscalls import syscall_names
from gputop.sources.ebpf.maps import Map

# How probes/sched.c packs a call.
_SUM = struct.Struct("<QQIIQ")
_NUMBER, _NO_CALL = 0x3FF, 0x3FF
_DEEP, _TIMED, _SHARED, _INHERITS, _SEVERAL, _ONE = 0x400, 0x800, 0x1000, 0x2000, 0x4000, 0x8000
_ARGUMENT_SHIFT = 16
_CODES = ("", "descriptor", "futex", "poll", "ppoll", "epoll", "epoll2", "select")  # by number, the meaning of a call's arguments
_ARGUMENTS = {
    "descriptor": (
        "read pread64 readv preadv preadv2 write pwrite64 writev pwritev pwritev2 fsync fdatasync sync_file_range ioctl fallocate "
        "ftruncate getdents64 recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg accept accept4 connect sendfile copy_file_range "
        "readahead fadvise64"
    ),
    "futex": "futex", "poll": "poll", "ppoll": "ppoll", "epoll": "epoll_wait epoll_pwait", "epoll2": "epoll_pwait2",
    "select": "select pselect6",
}  # fmt: skip
_KINDS = {
    "futex": "futex futex_wait futex_waitv", "child": "wait4 waitid", "signal": "pause rt_sigsuspend rt_sigtimedwait",
    "timer": "nanosleep clock_nanosleep poll ppoll select pselect6", "epoll": "epoll_wait epoll_pwait epoll_pwait2",
    "io_uring": "io_uring_enter io_getevents io_pgetevents", "ipc": "msgrcv msgsnd semop semtimedop mq_timedreceive mq_timedsend",
    "memory": "mmap munmap mremap brk madvise mprotect mlock mlock2 munlock msync process_madvise",
    "filesystem": (
        "open openat openat2 close stat fstat lstat newfstatat statx access faccessat faccessat2 getdents mkdir mkdirat rename renameat "
        "renameat2 unlink unlinkat rmdir link linkat symlink symlinkat readlink readlinkat truncate statfs fstatfs sync syncfs flock fcntl "
        "chdir getxattr listxattr setxattr utimensat chmod fchmod fchmodat chown execve execveat"
    ),
}  # fmt: skip
_UNIX = 1  # AF_UNIX
_SOCKET, _PIPE, _FILE, _BLOCK, _CHARACTER = 0xC000, 0x1000, 0x8000, 0x6000, 0x2000  # st_mode's kind of file
_BY_NAME = {
    b"[eventfd": "eventfd", b"[eventpo": "epoll", b"[timerfd": "timer", b"[signalf": "signal", b"[io_urin": "io_uring",
    b"[pidfd]\0": "pidfd",
}  # fmt: skip

NAMED_NS = 1_000_000  # ns that a pair slept at a futex until the futex has a row of its own: shorter-lived ones are many
MOST_NAMED = 8  # futexes with rows of their own for a pair and call
CROWDED = 1 / 16  # used part of the map, or as many rows, beyond which small sums are not sent, and idle ones deleted
TOLD_NS = 100_000  # ns, the least sum that is sent then
LITTLE_NS = 1_000_000  # ns: smaller sums that stopped growing are deleted, and of larger ones the smallest


class Calls:
    """The kinds of waits of this machine's system calls."""

    def __init__(self, machine: str = "") -> None:
        numbers = {name: number for number, name in syscall_names(machine).items()}
        self.arguments = {
            numbers[name]: _CODES.index(code) for code, names in _ARGUMENTS.items() for name in names.split() if name in numbers
        }  # fmt: skip
        self._kinds = {numbers[name]: kind for kind, names in _KINDS.items() for name in names.split() if name in numbers}

    def send_to_probe(self, table: Map) -> None:
        """Write into the map the arguments, by call, that the probe has to look at."""
        for number, code in self.arguments.items():
            table.put(number, code.to_bytes(4, "little"))

    def decode(self, packed: int, mode: int, name: int) -> tuple[int, str]:
        """(number of the system call, kind of wait)."""
        number = packed & _NUMBER
        if number == 0:
            return -2, ""
        if number == _NO_CALL:
            return -1, "fault"
        if packed & _SEVERAL:
            return number - 1, "several"
        return number - 1, kind_of_file(mode, name.to_bytes(8, "little")) if packed & _ONE else self._kinds.get(number - 1, "")


def kind_of_file(mode: int, name: bytes) -> str:
    """The kind of an open file: ``mode`` is its st_mode and a socket's family in the upper 16 bits, ``name`` 8 bytes of its name."""
    form = mode & 0xF000
    if form == _SOCKET:
        return "unix" if mode >> 16 == _UNIX else "network"
    if name in _BY_NAME:
        return _BY_NAME[name]
    if form == _CHARACTER:
        return "nvidia" if name.startswith(b"nvidia") else "terminal" if name.startswith(b"tty") or name[:1].isdigit() else "device"
    if form == 0:
        return "anonymous" if name.startswith(b"[") else ""
    return {_PIPE: "pipe", _FILE: "file", _BLOCK: "disk"}.get(form, "filesystem")


class _WakeupRow:
    """Sums that are sent as one `Wakeup`."""

    __slots__ = ("about", "named", "ns", "pid", "then", "times", "wakee", "waker")

    def __init__(self, wakee: int, waker: int, pid: int, about: tuple[int, str, int, bool, bool, bool, bool]) -> None:
        self.wakee, self.waker, self.pid, self.about = wakee, waker, pid, about
        self.ns = self.times = 0
        self.then = -1  # times at the last clean-up
        self.named: set[int] = set()  # addresses that have rows of their own

    def sample(self) -> Wakeup:
        return Wakeup(self.wakee, self.waker, self.pid, self.times, self.ns, *self.about)


class _MapEntry:
    """One entry of the map: the part that has been added to a row."""

    __slots__ = ("address", "ns", "row", "then", "times")

    def __init__(self, row: _WakeupRow, address: int) -> None:
        self.row, self.address = row, address
        self.ns = self.times = 0
        self.then = -1  # times at the last clean-up


About = TypeVar("About")
Key = tuple[int, int]  # wakee's tid | waker's tid << 32; the call as probes/sched.c packs it


class WakeReader:
    """Turns the map into rows of what changed."""

    def __init__(self, table: Map, calls: Calls) -> None:
        self._map, self._calls = table, calls
        self._room = int(table.shape.entries * CROWDED)
        self._rows: dict[tuple[object, ...], _WakeupRow] = {}
        self._entries: dict[Key, _MapEntry] = {}
        self._keys: list[Key] = []
        self._times: list[int] = []
        self._raw = b""

    def read(self, key: bool) -> tuple[list[Wakeup], set[int]]:
        """(rows that changed, or all in a key frame; the wakers in them)."""
        count = self._map.read()
        raw = self._map.keys[: count * self._map.shape.key_bytes]
        times = self._map.words(count)[1 :: _SUM.size // 8].tolist()
        if raw == self._raw:  # while no entry comes or goes, the kernel keeps their order
            changed: Iterable[int] = compress(range(count), map(ne, times, self._times))
        else:
            self._raw, self._keys = raw, self._map.pair_list(count)
            entries = self._entries
            changed = [i for i, one in enumerate(self._keys) if (entry := entries.get(one)) is None or entry.times != times[i]]
        self._times = times
        grown = {id(row): row for row in map(self._add, changed)}
        least_ns = TOLD_NS if len(self._rows) > self._room else 0
        rows = [row for row in (self._rows if key else grown).values() if row.ns >= least_ns]
        return [row.sample() for row in rows], {row.waker for row in rows}

    def prune(self, alive: set[int]) -> None:
        """Delete entries of ended threads; if the map is crowded also entries that stopped growing, and if the rows are many the least."""
        alive = alive | {0}  # the idle CPU or an interrupt, which never ends
        stale = [one for one in self._keys if one[0] & 0xFFFFFFFF not in alive or one[0] >> 32 not in alive]
        self._rows = {about: row for about, row in self._rows.items() if row.wakee in alive and row.waker in alive}
        stale += _resting(self._entries, self._room)
        if negligible := _resting(self._rows, self._room):
            gone = {id(self._rows.pop(about)) for about in negligible}
            stale += [one for one, entry in self._entries.items() if id(entry.row) in gone]
        self._map.delete(pair[0] | pair[1] << 64 for pair in dict.fromkeys(stale))
        for one in stale:
            self._entries.pop(one, None)

    def _add(self, at: int) -> _WakeupRow:
        """Add what an entry grew by to its row."""
        one = self._keys[at]
        ns, times, pid, mode, name = _SUM.unpack_from(self._map.values, at * _SUM.size)
        entry = self._entries.get(one)
        if entry is None or times < entry.times:
            entry = self._entries[one] = self._begin(one, pid, mode, name)
        row = entry.row
        if entry.address and not row.about[2] and ns >= NAMED_NS and len(row.named) < MOST_NAMED:
            row.named.add(entry.address)
            row = entry.row = self._row(row.wakee, row.waker, row.pid, (*row.about[:2], entry.address, *row.about[3:]))
        row.ns, row.times = row.ns + ns - entry.ns, row.times + times - entry.times
        entry.ns, entry.times = ns, times
        return row

    def _begin(self, one: Key, pid: int, mode: int, name: int) -> _MapEntry:
        pair, packed = one
        number, kind = self._calls.decode(packed, mode, name)
        flags = tuple(bool(packed & flag) for flag in (_TIMED, _DEEP, _SHARED, _INHERITS))
        wakee, waker = pair & 0xFFFFFFFF, pair >> 32
        address = packed >> _ARGUMENT_SHIFT if not packed & _ONE else 0
        row = self._row(wakee, waker, pid, (number, kind, 0, flags[0], flags[1], flags[2], flags[3]))
        if address in row.named:
            row = self._row(wakee, waker, pid, (*row.about[:2], address, *row.about[3:]))
        return _MapEntry(row, address)

    def _row(self, wakee: int, waker: int, pid: int, about: tuple[int, str, int, bool, bool, bool, bool]) -> _WakeupRow:
        return self._rows.setdefault((wakee, waker, about), _WakeupRow(wakee, waker, pid, about))


def _resting(held: Mapping[About, _MapEntry | _WakeupRow], room: int) -> list[About]:
    """Entries to delete if there are more than ``room``: small entries that have not grown since the last clean-up, or the
    smallest."""
    excess = len(held) - room
    if excess <= 0:
        return []
    still = sorted((about for about, one in held.items() if one.then == one.times), key=lambda about: held[about].ns)
    for one in held.values():
        one.then = one.times
    return [about for at, about in enumerate(still) if at < excess or held[about].ns < LITTLE_NS]


SETTLE_NS = SECOND_NS // 2  # ns between two updates of `Wakers.pids`
NOTABLE_NS = SETTLE_NS // 100  # ns of `SETTLE_NS` that a trainer must have slept until a process woke it
KEPT_NS = 5 * SECOND_NS  # ns for which a process stays in it
MOST_WAKERS = 16  # added in one update


class Wakers:
    """Processes that feed trainers without workers: they end the sleep of a trainer's main thread.

    Interrupts (tid 0) and the trainer's own threads do not count.
    """

    def __init__(self) -> None:
        self.pids: frozenset[int] = frozenset()
        self._sums: dict[Any, int] = {}  # `wakeup_key` -> cumulative wait so far
        self._gained: dict[int, int] = {}
        self._seen: dict[int, int] = {}  # pid -> when it was notable last
        self._settled = 0

    def add(self, wakeups: Iterable[Wakeup], alone: frozenset[int], t_ns: int) -> None:
        """Take in wake-ups of one drain; ``alone``: the trainers without workers."""
        for wake in wakeups if alone else ():
            if wake.wakee_tid in alone and wake.waker_pid not in (0, wake.wakee_tid):
                key = wakeup_key(wake)
                gained = wake.wait_ns - self._sums.get(key, wake.wait_ns)
                self._sums[key] = wake.wait_ns
                self._gained[wake.waker_pid] = self._gained.get(wake.waker_pid, 0) + max(0, gained)
        if t_ns // SETTLE_NS != self._settled:
            self._settled = t_ns // SETTLE_NS
            self._settle(alone, t_ns)

    def _settle(self, alone: frozenset[int], t_ns: int) -> None:
        """Update ``pids``, twice a second."""
        notable = sorted((pid for pid, ns in self._gained.items() if ns >= NOTABLE_NS), key=self._gained.__getitem__)
        self._gained = {}
        self._seen = {pid: seen for pid, seen in self._seen.items() if t_ns - seen < KEPT_NS} | dict.fromkeys(notable[-MOST_WAKERS:], t_ns)
        self._sums = {key: ns for key, ns in self._sums.items() if key[0] in alone}
        self.pids = frozenset(self._seen) if alone else frozenset()
