"""Finds the processes at the other ends of a process's pipes, sockets and shared memory, and what it uses its sockets for.

The kernel shows which socket is at the other end (sock_diag, /proc/PID/net/tcp), not which process has it. For that the descriptors of all
processes are searched, some processes in each tick; for memory that processes share, such as a ring in /dev/shm, their maps.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import takewhile

from gputop.model.syscalls import syscall_numbers
from gputop.sources.files import open_files, read_list, read_once
from gputop.sources.waits import maps_any

# System calls that take the descriptor as their first argument.
ACCEPTS = syscall_numbers("accept", "accept4")
READS = syscall_numbers("read", "readv", "recvfrom", "recvmsg", "recvmmsg")
WRITES = syscall_numbers("write", "writev", "sendto", "sendmsg", "sendmmsg")
POLLS = syscall_numbers("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4")
PER_TICK = 25  # processes searched for descriptors in a tick: some milliseconds if each has many
FILES_NS = 5_000_000  # ns of CPU time in a tick after which no other process's descriptors are read (guess)
MAPS_NS = 1_000_000  # ns of CPU time in a tick after which no other process's maps are read: some of them take as long (guess)
FUSE = "/dev/fuse"  # open in each process that serves a file system
_MEMORY = "memory:"  # the beginning of an end that is shared memory
MOST_ENDS = 32  # pipes, sockets and shared memories followed of one process
ASK_EVERY = 10  # sightings of the same descriptor after which its link is read again
FIRST_PAUSE, LONGEST_PAUSE = 50, 3200  # ticks between two searches: the first pause, and the longest after doubling
_TCP_BYTES = 1 << 19  # most bytes read of /proc/PID/net/tcp for a peer
SOCK_DIAG, BY_FAMILY, REQUEST, ERROR = 4, 20, 1, 2  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLMSG_ERROR
_SHOW_PEER, _PEER = 4, 2  # UDIAG_SHOW_PEER, UNIX_DIAG_PEER (linux/unix_diag.h)
_ANY_COOKIE = 0xFFFFFFFF  # INET_DIAG_NOCOOKIE


class Ends:
    """Files that one process reads from, and the processes that write there; with ``writes`` the files it writes to, and the processes that
    read there. Memory in which it waits for others has them all at its other end."""

    def __init__(self, proc: str, pid: int, writes: bool = False) -> None:
        self.holders: frozenset[int] = frozenset()  # pids at the other end
        self._proc, self._pid, self._writes = proc, pid, writes
        self._wanted: dict[str, str] = {}
        """Its pipe or socket -> the other end, both as links in /proc/PID/fd; empty if that is on another machine."""
        self._told: set[int] = set()  # pids at the other end that need no search
        self._left: list[int] = []  # pids not searched yet
        self._among_likely = False  # whether the search is among likely ones
        self._due_in, self._pause = 0, FIRST_PAUSE  # ticks until the next search; ticks between that one and the one after it
        self._seen: dict[int, int] = {}  # the latest descriptors, and how often each was seen
        self._polls = 0  # how often it was seen polling

    def add_descriptor(self, descriptor: int, at_pipe: bool = False) -> None:
        """The process waits at ``descriptor``. ``at_pipe``: it sleeps in the kernel's pipe code, so a descriptor with a path is a FIFO."""
        seen = self._seen.pop(descriptor, 0)
        if len(self._seen) == MOST_ENDS:
            self._seen.pop(next(iter(self._seen)))  # the one not seen for longest
        self._seen[descriptor] = seen + 1
        if not seen % ASK_EVERY:
            self._want([descriptor], at_pipe)

    def add_polled(self, find: Callable[[], Iterable[int]]) -> None:
        """The process polls the descriptors that ``find`` returns, which is asked now and then."""
        self._polls += 1
        if self._polls % ASK_EVERY == 1:
            self._want(find(), at_pipe=False)

    def add_memory(self, memory: str) -> None:
        """The process sleeps at a futex in memory that other processes may map; see `Waits.shared_memory`."""
        self._want_shared(_MEMORY + memory)

    def _want(self, descriptors: Iterable[int], at_pipe: bool) -> None:
        """Search for the processes at the other ends of the descriptors, as far as there is room."""
        kinds = ("pipe:", "socket:", "/") if at_pipe else ("pipe:", "socket:")
        links = list[str]()
        for descriptor in descriptors:
            with suppress(OSError):
                link = os.readlink(f"{self._proc}{self._pid}/fd/{descriptor & 0xFFFFFFFF}")
                if link not in self._wanted and len(self._wanted) + len(links) < MOST_ENDS and link.startswith(kinds):
                    links.append(link)
        if links:
            self._wanted |= _other_ends(self._proc, self._pid, links)
            self._due_in, self._pause = 0, FIRST_PAUSE

    @property
    def is_searching(self) -> bool:
        """True if some processes of a search are left for the next ticks."""
        return bool(self._left)

    @property
    def has_any(self) -> bool:
        """True if it follows anything, or a search goes on."""
        return bool(self._wanted or self._told or self._left)

    def add_processes(self, pids: Iterable[int]) -> None:
        """The process waits for one of ``pids``, which are known without a search."""
        self._told.update(pids)

    def add_file_system(self) -> None:
        """The process waits for a file system that a process of this host serves (FUSE): one that has the device open."""
        self._want_shared(FUSE)

    def _want_shared(self, end: str) -> None:
        """Search for the processes that share the end with this one, if there is room."""
        if end not in self._wanted and len(self._wanted) < MOST_ENDS:
            self._wanted[end] = end
            self._due_in, self._pause = 0, FIRST_PAUSE

    def search_processes(self, pids: Collection[int], likely: Collection[int] = (), ticks: int = 1) -> bool:
        """Search some more of the processes ``pids``, so many ``ticks`` after the last time; True if ``holders`` changed. If some are
        ``likely``, the others are searched only after these were in vain."""
        told = self._told.intersection(pids) - self.holders if self._told else set[int]()  # such an intersection looks at all ``pids``
        if told:
            self.holders |= told
        if not self._left and not self._begin_search(pids, likely, ticks):
            return bool(told)
        some, found = self._search_some({end for end in self._wanted.values() if end})
        self._left = self._left[len(some) :]
        before, self.holders = self.holders, (self.holders - set(some) | found).intersection(pids)
        if not self._left and not self.holders and self._among_likely:
            self._among_likely, self._left = False, [pid for pid in pids if pid != self._pid and pid not in likely]
        if self._told:
            self.holders |= self._told.intersection(pids)
        return self.holders != before or bool(told)

    def _search_some(self, wanted: Collection[str]) -> tuple[list[int], set[int]]:
        """(processes searched now, those of them that have one of the ends)."""
        here, found = os.O_WRONLY if self._writes else os.O_RDONLY, set[int]()
        memories = [end.removeprefix(_MEMORY) for end in wanted if end.startswith(_MEMORY)]
        until_ns = time.thread_time_ns() + (MAPS_NS if memories else FILES_NS)
        for number, pid in enumerate(self._left[:PER_TICK]):
            if number and time.thread_time_ns() > until_ns:
                return self._left[:number], found
            folder = f"{self._proc}{pid}/"
            if _holds(folder, wanted, here) or (memories and maps_any(folder, memories)):
                found.add(pid)
        return self._left[:PER_TICK], found

    def _begin_search(self, pids: Collection[int], likely: Collection[int], ticks: int) -> bool:
        """Begin another search if one is due. None is while all processes live that the last one found."""
        self._due_in -= ticks
        if self._due_in > 0 or not any(self._wanted.values()):
            return False
        if self._pause > FIRST_PAUSE and self.holders and self.holders.issubset(pids):
            return False
        self._among_likely = bool(likely)
        self._left = [pid for pid in likely or pids if pid != self._pid]
        self._due_in, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return True


def _holds(folder: str, wanted: Collection[str], here: int) -> bool:
    """True if the process has one of the files open. A pipe counts only if its mode there differs from ``here``."""
    with suppress(OSError):
        for descriptor, link in open_files(folder, MOST_FILES):
            if link in wanted and (link.startswith("socket:") or _mode(f"{folder}fdinfo/{descriptor}") != here):
                return True
    return False


def _mode(path: str) -> int:
    """Access mode (O_ACCMODE) of a descriptor, from its fdinfo."""
    flags = next((line.split()[1] for line in (read_once(path, 1024) or b"").splitlines() if line.startswith(b"flags:")), b"0")
    return int(flags, 8) & os.O_ACCMODE


def _other_ends(proc: str, pid: int, links: Iterable[str]) -> dict[str, str]:
    """Pipe or socket of a process -> its other end, see `Ends._wanted`. The tables of TCP connections are read once for all."""
    found, asked = dict[str, str](), dict[int, str]()
    for link in links:
        found[link] = "" if link.startswith("socket:") else link
        if link.startswith("socket:"):
            asked[int(link[len("socket:[") : -1])] = link
    peers = {inode: peer for inode in asked if (peer := unix_peer(inode))}
    if asked.keys() - peers.keys():
        peers |= _tcp_peers(f"{proc}{pid}/net/", asked.keys() - peers.keys())
    return found | {asked[inode]: f"socket:[{peer}]" for inode, peer in peers.items()}


def unix_peer(inode: int) -> int:
    """Inode of the peer of a UNIX socket (NETLINK_SOCK_DIAG); 0 without a peer in this network namespace."""
    request = struct.pack("<BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _SHOW_PEER, _ANY_COOKIE, _ANY_COOKIE)
    header = struct.pack("<IHHII", 16 + len(request), BY_FAMILY, REQUEST, 1, 0)
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as asked:
        asked.settimeout(0.05)
        asked.send(header + request)
        return _peer_in(asked.recv(4096))
    return 0


def _peer_in(answer: bytes) -> int:
    """The peer's inode in an answer: nlmsghdr, unix_diag_msg, then attributes with length and type."""
    if len(answer) < 32 or struct.unpack_from("<H", answer, 4)[0] == ERROR:
        return 0
    return next((int.from_bytes(value[:4], "little") for kind, value in attributes(answer, 32) if kind == _PEER and len(value) >= 4), 0)


def attributes(answer: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """(type, value) of each whole netlink attribute from offset ``at`` on: length and type stand before each."""
    while at + 4 <= len(answer):
        length, kind = struct.unpack_from("<HH", answer, at)
        if 4 <= length <= len(answer) - at:
            yield kind, answer[at + 4 : at + length]
        at += max(4, length + 3 & ~3)


def _tcp_peers(folder: str, inodes: Collection[int]) -> dict[int, int]:
    """Inode of a TCP connection within this machine -> inode of its peer. Both ends stand in one table."""
    found = dict[int, int]()
    for name in ("tcp", "tcp6"):
        if len(found) == len(inodes):
            break
        ends = {(row[1], row[2]): int(row[9]) for row in rows_of_table(folder + name, 10, _TCP_BYTES)}
        found |= {own: peer for pair, own in ends.items() if own in inodes and (peer := ends.get((pair[1], pair[0]), 0))}
    return found


def rows_of_table(path: str, columns: int, size: int) -> Iterator[list[bytes]]:
    """The rows of a table of sockets that have so many columns, without its head."""
    for line in (read_list(path, size) or b"").splitlines()[1:]:
        if len(fields := line.split(None, columns)) >= columns:
            yield fields


LISTENING, CONNECTED, NONE, UNREADABLE = "listening", "connected", "none", ""  # what a process has sockets for
MOST_FILES = 1024  # descriptors looked at of one process
_TABLE_BYTES = 1 << 18  # most bytes read of a table of sockets; listening ones come first in tcp, older ones in unix
LISTENS = b"0A"  # TCP_LISTEN, the state of a listening socket
_ACCEPTS = b"00010000"  # __SO_ACCEPTCON, the flags of a listening UNIX socket


class SocketUse:
    """Use of its sockets by one sleeping process: it waits for clients, or for an answer.

    The kernel's tables of sockets take milliseconds where there are thousands. They are read when the deciding sockets have changed, and
    once more, for a socket listens a moment after it was made.
    """

    __slots__ = ("_folder", "_is_settled", "_pid", "_proc", "_seen", "_use")

    def __init__(self, proc: str, pid: int) -> None:
        self._proc, self._pid, self._folder = proc, pid, f"{proc}{pid}/"
        self._seen: object = None  # the sockets that decided the last time
        self._use = UNREADABLE
        self._is_settled = False  # whether they were the same twice

    def read(self, above: Iterable[int], reads: int | None = None) -> str:
        """The use. ``reads``: the descriptor at which it waits for input; ``above``: its ancestors.

        `CONNECTED`: it reads from a connection that it made itself, or has a socket that is no UNIX socket and takes no requests.
        `LISTENING`: it has a listening socket, or a process ``above`` it in its session has, which may forward requests. `UNREADABLE`: its
        descriptors may not be read, or a process above keeps its own closed and nothing else decides. Else `NONE`.
        """
        own = open_sockets(self._folder)
        if own is None:
            self._seen = None
            return UNREADABLE
        others = [open_sockets(f"{self._proc}{other}/") for other in _in_session(self._pid, above)]
        seen = own, others, b"" if reads is None else _socket_at(self._folder, reads)
        if seen == self._seen and self._is_settled:
            return self._use
        self._is_settled, self._seen = seen == self._seen, seen
        self._use = self._find(*seen) if own or any(others) else UNREADABLE if None in others else NONE
        return self._use

    def _find(self, own: set[bytes], others: list[set[bytes] | None], read: bytes) -> str:
        """The use, by the kernel's tables. ``read``: the socket that it waits at for input, empty for none."""
        if read and _is_connected(self._folder, read):
            return CONNECTED
        listening, local = _sockets(f"{self._folder}net/")
        if any(inodes & listening for inodes in (own, *others) if inodes):
            return LISTENING
        if None in others:
            return UNREADABLE
        return CONNECTED if own - local else NONE


def _socket_at(folder: str, descriptor: int) -> bytes:
    """The inode of the socket at a descriptor, else empty."""
    with suppress(OSError):
        link = os.readlink(f"{folder}fd/{descriptor & 0xFFFFFFFF}")
        return link[8:-1].encode() if link.startswith("socket:[") else b""
    return b""


def _is_connected(folder: str, inode: bytes) -> bool:
    """True if the socket is a TCP connection that this side made: no process listens here at its own port."""
    for name in ("tcp", "tcp6"):
        ports, listening = set[bytes](), set[bytes]()
        for row in rows_of_table(f"{folder}net/{name}", 10, _TCP_BYTES):
            if row[3] == LISTENS:
                listening.add(row[1].rpartition(b":")[2])
            elif row[9] == inode:
                ports.add(row[1].rpartition(b":")[2])
        if ports:
            return not ports & listening
    return False


def _in_session(pid: int, above: Iterable[int]) -> list[int]:
    """Pids of ``above`` in the session of ``pid``. The login or terminal server that started it has another session."""
    with suppress(OSError):
        session = os.getsid(pid)
        return [other for other in above if os.getsid(other) == session]
    return []


def _sockets(folder: str) -> tuple[set[bytes], set[bytes]]:
    """(inodes of listening sockets, inodes of UNIX sockets)."""
    tables = [takewhile(lambda row: row[3] == LISTENS, rows_of_table(folder + name, 10, _TABLE_BYTES)) for name in ("tcp", "tcp6")]
    local = list(rows_of_table(folder + "unix", 7, _TABLE_BYTES))
    listening = {row[9] for table in tables for row in table} | {row[6] for row in local if row[3] == _ACCEPTS}
    return listening, {row[6] for row in local}


def open_sockets(folder: str) -> set[bytes] | None:
    """Inodes of the sockets of the process under ``folder``; None if its descriptors may not be read."""
    try:
        return {link[8:-1].encode() for _, link in open_files(folder, MOST_FILES) if link.startswith("socket:[")}
    except OSError:
        return None
