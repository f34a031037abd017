"""The system call that a thread sleeps in: /proc/PID/syscall and wchan.

A DataLoader worker that is *ahead* polls its index queue with a timeout; one that is *blocked* sleeps in a read, a futex or a connect. Both
are in state S: only the system call and its argument distinguish them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from zlib import crc32

from gputop.model.syscalls import syscall_names, syscall_numbers
from gputop.sources import mutexes
from gputop.sources.files import DescriptorBudget, KeptFile, read_list, read_once

RUNNING = -1  # the system call of a thread that is in none
FOR_EVER = -1  # the argument of a call without a time limit, as in poll(2)
MS, _MICRO, NANO = 1, 1_000_000, 1_000_000_000  # a timeout in ms; a pointer to a pair of seconds and microseconds or nanoseconds
_LIMIT = -1  # a pointer that is not followed: a futex's time limit is a moment, and calls to it are too many
_TIMEOUTS = {
    "poll": (2, MS), "ppoll": (2, NANO), "select": (4, _MICRO), "pselect6": (4, NANO), "epoll_wait": (3, MS), "epoll_pwait": (3, MS),
    "epoll_pwait2": (3, NANO), "futex": (3, _LIMIT),
}  # fmt: skip
# System call number -> (index of the timeout argument, its unit).
TIMEOUTS = {number: _TIMEOUTS[name] for number, name in syscall_names().items() if name in _TIMEOUTS}
FUTEX = next((call for call, timeout in TIMEOUTS.items() if timeout[1] == _LIMIT), None)
"""Number of the system call, None on an unknown architecture."""
SEMOPS = syscall_numbers("semop", "semtimedop")

_PRIVATE = 0x80  # FUTEX_PRIVATE_FLAG of linux/futex.h: only threads of one process sleep there
_MAPS_BYTES = 8 << 20  # most bytes read of a process's maps
MOST_POLLED = 32  # descriptors read of one poll, select or epoll (guess)
_FDINFO_BYTES = 1 << 13  # most bytes read of the descriptor of an epoll: a line of 60 for each descriptor in it
_POLLIN = 1  # of poll.h: the caller waits to read
_MOST_KNOWN = 16  # futexes of one process whose place is remembered (guess)

Wait = tuple[int | None, int | None, str | None]  # (system call, argument, wchan), each None if it cannot be read
UNKNOWN: Wait = (None, None, None)


class Waits:
    """The waits of one thread, or of a process's main thread, by its folder in /proc."""

    __slots__ = ("_arguments", "_call", "_folder", "_kept", "_name", "_places", "_segments", "_shared_at", "_syscall", "_wchan")

    def __init__(self, folder: str, pool: DescriptorBudget) -> None:
        self._folder = folder
        self._syscall = KeptFile(folder, "syscall", 256, pool)
        self._wchan = KeptFile(folder, "wchan", 128, pool)
        self._call: tuple[int | None, int | None] = (None, None)
        self._name: str | None = None
        self._kept = 0
        self._shared_at = 0  # address of the futex between processes in which it sleeps; 0: in none
        self._places: dict[int, tuple[str, int] | None] = {}
        self._segments: list[str] | None = None  # `segments`; None: not read yet
        self._arguments = (0, 0, 0)  # the first three of its system call

    def read(self, state: str) -> Wait:
        """Ask the kernel. If the thread no longer sleeps, the call is `RUNNING`.

        wchan is read in state D, when the call or its argument has changed, and in every tenth reading.
        """
        call = self._parse(self._syscall.read())
        if call[0] == RUNNING:
            return *call, ""
        if call != self._call or call[0] is None or state == "D" or self._kept >= 10:
            name = self._wchan.read()
            self._call, self._kept, self._name = call, 0, name.decode("utf-8", "replace") if name and name != b"0" else None
        self._kept += 1
        return *call, self._name

    def unreadable(self) -> str:
        """Why the system call cannot be read, empty if it can."""
        reason = self._syscall.reason
        if reason and "not permitted" in reason:
            return reason + " (needs CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0 for the same user)"
        return reason

    @property
    def semaphore(self) -> tuple[int, int] | None:
        """(id of the set, address of its operations) if it sleeps in semop(2)."""
        return self._arguments[:2] if self._call[0] in SEMOPS else None

    @property
    def shared_futex(self) -> int | None:
        """The futex shared by processes (semaphore, `multiprocessing.Lock`), or System V semaphores, that it sleeps in, as a number that
        is the same for all its sleepers, though each may map it elsewhere; None if it sleeps in none."""
        if self._call[0] in SEMOPS:
            return crc32(b"semid %d" % self._arguments[0])
        place = self._place_of_futex()
        return None if place is None else crc32(b"%s %d" % (place[0].encode(), place[1]))

    @property
    def shared_memory(self) -> str:
        """The memory between processes with the futex that it sleeps in, as ``device inode`` of its maps; empty if it sleeps in none."""
        place = self._place_of_futex()
        return "" if place is None else place[0]

    @property
    def segments(self) -> list[str]:
        """The System V shared memory of a process that sleeps in semop(2), each as ``device inode`` of its maps: what such semaphores
        guard. The kernel lists no users of a semaphore."""
        if self._call[0] not in SEMOPS:
            return []
        if self._segments is None:
            lines = (read_list(self._folder + "maps", _MAPS_BYTES) or b"").splitlines()
            found = (line.split(maxsplit=5) for line in lines if b" /SYSV" in line)
            self._segments = [b" ".join(fields[3:5]).decode() for fields in found][:_MOST_KNOWN]
        return self._segments

    def _place_of_futex(self) -> tuple[str, int] | None:
        address = self._shared_at
        if not address:
            return None
        if address not in self._places:
            if len(self._places) >= _MOST_KNOWN:
                self._places.clear()
            self._places[address] = _place(address, read_list(self._folder + "maps", _MAPS_BYTES) or b"")
        return self._places[address]

    @property
    def polled(self) -> list[int]:
        """The descriptors from which its poll, select or epoll waits to read, at most `MOST_POLLED`; empty in any other system call."""
        return polled(self._folder, self._call[0], *self._arguments[:2])

    @property
    def lock_holder(self) -> int:
        """Id of the thread that holds the mutex or read-write lock in whose futex it sleeps, as that lock names it; 0: none is named."""
        address, operation, value = self._arguments
        if self._call[0] != FUTEX or not mutexes.sleeps_at_lock(operation, value & 0xFFFF_FFFF):
            return 0
        return mutexes.holder(lambda at, count: bytes_at(at, count, self._folder), address, operation, value & 0xFFFF_FFFF)

    def _parse(self, data: bytes) -> tuple[int | None, int | None]:
        fields, self._shared_at = data.split(), 0
        if not fields:
            return None, None
        if fields[0] in (b"running", b"-1") or len(fields) < 7:
            return RUNNING, None
        call, self._arguments = int(fields[0]), (int(fields[1], 16), int(fields[2], 16), int(fields[3], 16))
        if call == FUTEX and not int(fields[2], 16) & _PRIVATE:
            self._shared_at = int(fields[1], 16)
        where, unit = TIMEOUTS.get(call, (0, 0))
        argument = int(fields[where + 1], 16)
        return call, timeout_ms(argument, unit, self._folder) if unit else _signed(argument, 64)

    def retry(self) -> None:
        self._syscall.retry()
        self._wchan.retry()

    def close(self) -> None:
        self._syscall.close()
        self._wchan.close()


def maps_any(folder: str, memories: Iterable[str]) -> bool:
    """True if the process under ``folder`` maps one of the files or shared memories, each as ``device inode`` of /proc/PID/maps."""
    maps = read_list(folder + "maps", _MAPS_BYTES) or b""
    return any(b" %s " % memory.encode() in maps for memory in memories)


def _place(address: int, maps: bytes) -> tuple[str, int] | None:
    """(``device inode`` of the file or shared memory, such as a memfd or what a parent shares with its children, place in it) mapped at an
    address; None if neither is."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        begin, _, end = fields[0].partition(b"-")
        if len(fields) >= 5 and int(begin, 16) <= address < int(end, 16):
            place = int(fields[2], 16) + address - int(begin, 16)
            return ((b"%s %s" % (fields[3], fields[4])).decode(), place) if fields[4] != b"0" else None
    return None


def polled(folder: str, call: int | None, first: int, second: int) -> list[int]:
    """See `Waits.polled`. ``first``, ``second``: the system call's arguments."""
    name = syscall_names().get(-1 if call is None else call, "")
    if name.startswith("epoll_"):
        lines = (read_once(f"{folder}fdinfo/{first & 0xFFFFFFFF}", _FDINFO_BYTES) or b"").splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith(b"tfd:")][:MOST_POLLED]
    if name in ("poll", "ppoll"):
        pairs = struct.iter_unpack("=iHH", bytes_at(first, 8 * min(second, MOST_POLLED), folder))
        return [descriptor for descriptor, events, _ in pairs if descriptor >= 0 and events & _POLLIN]
    if name in ("select", "pselect6"):
        bits = int.from_bytes(bytes_at(second, min(first, 1024) + 7 >> 3, folder), "little")
        return [descriptor for descriptor in range(min(first, 1024)) if bits >> descriptor & 1][:MOST_POLLED]
    return []


def timeout_ms(argument: int, unit: int, folder: str) -> int | None:
    """A call's time limit in ms; `FOR_EVER` if it has none, None if it cannot be read, 0 for a futex with a limit. ``unit``: see `MS`."""
    if unit == MS:
        return _signed(argument & 0xFFFF_FFFF, 32)
    if argument == 0:
        return FOR_EVER
    if unit == _LIMIT:
        return 0
    pair = _memory(argument, folder)
    return None if pair is None else pair[0] * 1000 + pair[1] * 1000 // unit


def _memory(address: int, folder: str) -> tuple[int, int] | None:
    """Two longs of the process's memory."""
    data = bytes_at(address, 16, folder)
    return struct.unpack("@2q", data) if data else None


def bytes_at(address: int, count: int, folder: str) -> bytes:
    """So many bytes of the process's memory, all or none; the right to read its system calls is enough."""
    try:
        fd = os.open(folder + "mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.pread(fd, count, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)
    return data if len(data) == count else b""


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
