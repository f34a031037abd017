"""Who holds the other end of what a trainer reads from, or waits to write to: a pipe, a UNIX socket, a connection to this machine.

The kernel tells the socket at the other end (sock_diag, /proc/PID/net/tcp), not whose it is: the descriptors of all processes are looked
through for that, some of them in each tick.
"""

from __future__ import annotations

import os
import platform
import socket
import struct
from collections.abc import Collection
from contextlib import suppress

from gputop.sources.files import read_list, read_once
from gputop.sources.procfs.sockets import MOST_FILES

# read, readv, recvfrom, recvmsg, recvmmsg: their first argument is the descriptor.
READS = frozenset({"x86_64": (0, 19, 45, 47, 299), "aarch64": (63, 65, 207, 212, 243)}.get(platform.machine(), ()))
# write, writev, sendto, sendmsg, sendmmsg: likewise.
WRITES = frozenset({"x86_64": (1, 20, 44, 46, 307), "aarch64": (64, 66, 206, 211, 269)}.get(platform.machine(), ()))
PER_TICK = 25
"""Processes whose descriptors are looked at: some milliseconds, where each has many."""
MOST_ENDS, ASK_EVERY = 32, 10
FIRST_REST, LONGEST_REST = 50, 3200
"""Ticks after a search that found nobody, each time twice as many: who was not there, or not to be seen, may be now."""
_TABLE_BYTES = 1 << 19
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_SHOW_PEER, _PEER = 4, 2
"""UDIAG_SHOW_PEER and the attribute UNIX_DIAG_PEER of linux/unix_diag.h."""
_ANY_COOKIE = 0xFFFFFFFF


class Ends:
    """What one process reads from, and who writes there; or, with ``writes``, what it writes to, and who reads there."""

    def __init__(self, proc: str, pid: int, writes: bool = False) -> None:
        self.holders: frozenset[int] = frozenset()
        self._proc, self._pid, self._writes = proc, pid, writes
        self._wanted: dict[str, str] = {}
        """What it reads from -> the other end, as links in /proc/PID/fd; empty where that is not on this machine."""
        self._left: list[int] = []
        self._rests, self._rest = 0, FIRST_REST
        """Ticks until the next search, and after it."""
        self._descriptor, self._met = -1, 0
        """The latest, and how often it was met since another one."""

    def note(self, descriptor: int, at_pipe: bool = False) -> None:
        """It was met there; what the same descriptor is, is not asked each time. ``at_pipe``: it slept where pipes are waited for, so that
        what has a path is a FIFO."""
        self._met = self._met + 1 if descriptor == self._descriptor else 0
        self._descriptor = descriptor
        if self._met % ASK_EVERY:
            return
        with suppress(OSError):
            link = os.readlink(f"{self._proc}{self._pid}/fd/{descriptor & 0xFFFFFFFF}")
            kinds = ("pipe:", "socket:", "/") if at_pipe else ("pipe:", "socket:")
            if link not in self._wanted and len(self._wanted) < MOST_ENDS and link.startswith(kinds):
                self._wanted[link] = _other_end(self._proc, self._pid, link)
                self._rests, self._rest = 0, FIRST_REST

    def search(self, pids: Collection[int]) -> bool:
        """Look through some more processes; whether others were found than are known."""
        wanted = {end for end in self._wanted.values() if end}
        if not self._left and not self._begins(pids, bool(wanted)):
            return False
        some, self._left = self._left[:PER_TICK], self._left[PER_TICK:]
        found = {pid for pid in some if _holds(f"{self._proc}{pid}/", wanted, os.O_WRONLY if self._writes else os.O_RDONLY)}
        before, self.holders = self.holders, (self.holders - set(some) | found).intersection(pids)
        return self.holders != before

    def _begins(self, pids: Collection[int], wanted: bool) -> bool:
        """Whether it is time for another search: not while those are there whom the last one found."""
        self._rests -= 1
        found = bool(self.holders) and self.holders.issubset(pids)
        if not wanted or self._rests > 0 or (found and self._rest > FIRST_REST):
            return False
        self._left = [pid for pid in pids if pid != self._pid]
        self._rests, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
        return True


def _holds(folder: str, wanted: Collection[str], here: int) -> bool:
    """Whether it has one of these open, of a pipe otherwise than ``here``: to write where somebody reads, and to read where one writes."""
    with suppress(OSError):
        for name in os.listdir(folder + "fd")[:MOST_FILES]:
            with suppress(FileNotFoundError):
                link = os.readlink(f"{folder}fd/{name}")
                if link in wanted and (link.startswith("socket:") or _mode(f"{folder}fdinfo/{name}") != here):
                    return True
    return False


def _mode(path: str) -> int:
    """Whether it is open to read, to write, or both (O_ACCMODE)."""
    flags = next((line.split()[1] for line in (read_once(path, 1024) or b"").splitlines() if line.startswith(b"flags:")), b"0")
    return int(flags, 8) & os.O_ACCMODE


def _other_end(proc: str, pid: int, link: str) -> str:
    if not link.startswith("socket:"):
        return link
    inode = int(link[len("socket:[") : -1])
    peer = unix_peer(inode) or _tcp_peer(f"{proc}{pid}/net/", inode)
    return f"socket:[{peer}]" if peer else ""


def unix_peer(inode: int) -> int:
    """Inode of the UNIX socket that one is connected to (NETLINK_SOCK_DIAG), 0 where it is none of this network namespace."""
    request = struct.pack("<BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _SHOW_PEER, _ANY_COOKIE, _ANY_COOKIE)
    header = struct.pack("<IHHII", 16 + len(request), _BY_FAMILY, _REQUEST, 1, 0)
    with suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as asked:
        asked.settimeout(0.05)
        asked.send(header + request)
        return _peer_in(asked.recv(4096))
    return 0


def _peer_in(answer: bytes) -> int:
    """nlmsghdr, unix_diag_msg, then attributes of (length, type) each."""
    if len(answer) < 32 or struct.unpack_from("<H", answer, 4)[0] == _ERROR:
        return 0
    at = 32
    while at + 8 <= len(answer):
        length, kind = struct.unpack_from("<HH", answer, at)
        if kind == _PEER:
            return int(struct.unpack_from("<I", answer, at + 4)[0])
        at += max(4, length + 3 & ~3)
    return 0


def _tcp_peer(folder: str, inode: int) -> int:
    """The same of a TCP connection to this machine; both ends stand in one table."""
    for name in ("tcp", "tcp6"):
        rows = [line.split(None, 10) for line in read_list(folder + name, _TABLE_BYTES).splitlines()[1:]]
        ends = {(row[1], row[2]): row[9] for row in rows if len(row) > 9}
        own = next((pair for pair, number in ends.items() if number == b"%d" % inode), None)
        if own is not None:
            return int(ends.get((own[1], own[0]), b"0"))
    return 0
