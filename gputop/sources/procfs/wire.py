"""Reads how long the TCP connections of a training's ranks have data on the wire, and for how long data keep arriving at those of a
process that feeds a trainer: sock_diag's tcp_info, without eBPF.

``tcpi_busy_time`` is the time in which a connection has sent what its peer has not acknowledged, less the time in which the peer's window
was full: then the peer does not read. A rank that waits for a late one has sent everything long ago; behind a slow wire data are always on
their way.

Data keep arriving where they came in the last milliseconds at a look (``tcpi_last_data_recv``), in segments about as large as they may be:
the peer has more to send than has come. A peer that sends small messages, or sends now and then, has an idle reader.

An answer is awaited from another host where a server, on a connection that it made itself, sent last (``tcpi_last_data_sent``), and data
came there some seconds ago at most: what is only sent, such as a log, gets no answer, and a subscription's comes seldom. Connections that
the server took are its clients'.

A peer that does not read also acknowledges late what has arrived (up to 200 ms: TCP_DELACK_MAX). That time is no time on the wire. It is
seen in samples, as data that lie unread at the peer's end; where that end is on another host, as silence for longer than the round trip.

A process's connections are found by the inodes of its descriptors, in one dump of the kernel's table, which may take milliseconds on a
large machine; from then on each is asked for by its addresses (some us). Processes in another network namespace, as in a container, are
asked for by a socket that was opened there, which takes root.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import count, islice
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputop.model.roles import SIZE_VARIABLES, number_in
from gputop.sources import netns
from gputop.sources.files import read_list
from gputop.sources.procfs.ends import BY_FAMILY, ERROR, REQUEST, SOCK_DIAG, attributes, open_sockets
from gputop.sources.procfs.process import Process, Wire
from gputop.system.errors import start_thread
from gputop.system.text import clean

EVERY_NS = 200_000_000  # ns between two readings of the connections
SILENT_MS = 20  # ms without a segment either way, beyond two round trips, after which the peer must hold its acknowledgement back (guess)
FIND_NS = 3_000_000_000  # ns at least between two searches for connections
SHARE = 0.001  # most of one CPU that searches and readings take, each; both come later where they would take more (guess)
MOST_READ, MOST_CONNECTIONS = 16, 64  # processes that are read, and connections of each: with more, those found first
ARRIVES_MS = 20  # most ms since data came at a connection at which they keep arriving: some ticks of a kernel with 250 Hz (guess)
ANSWERED_MS = 3000  # most ms since data came at a connection at which what it sent is answered: the pace of long polls is slower (guess)
LARGE_BYTES = 8960  # payload of a jumbo frame; segments of half as much, or half of a smaller limit, carry a stream (guess)
MOST_BYTES = 8 << 20  # most bytes read of a dump: 20,000 connections
_NLMSG, _REQUEST, _ID = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), slice(4, 52)  # nlmsghdr, inet_diag_req_v2, inet_diag_sockid
_OWN, _PEER = 4, 20  # of addresses in inet_diag_sockid; the ports stand before them
_DONE, _DUMP = 3, REQUEST | 0x300  # NLMSG_DONE; NLM_F_REQUEST | NLM_F_DUMP
_INFO, _ESTABLISHED, _LISTEN = 2, 1 << 1, 1 << 10  # INET_DIAG_INFO (linux/inet_diag.h); TCP_ESTABLISHED and TCP_LISTEN as bits
_MESSAGE_BYTES, _INODE = 72, 68  # inet_diag_msg
_MESSAGE_UNREAD = 56  # inet_diag_msg: idiag_rqueue, u32
_WORDS = struct.Struct("=24xI16xI4xII8xI12xI12xI44xII")
"""Fields of tcp_info: unacked, last_data_sent, last_data_recv, last_ack_recv, rtt, advmss, total_retrans, min_rtt, data_segs_in."""
_ACKED, _BUSY = 120, 168  # offsets in it: 2 x u64 each; Linux 4.9 and later
_INFO_BYTES = 184  # of tcp_info up to rwnd_limited
_SIOCGIFCONF, _IFREQ_BYTES, _MOST_NAMES = 0x8912, 40, 64  # ioctl: addresses of all interfaces (IPv4); struct ifreq; interfaces
_NUMBERS = count(1)  # of requests
_Made = TypeVar("_Made")


class Counters(Struct, frozen=True):
    """tcp_info of one connection."""

    busy_us: int
    acked: int
    received: int
    retrans: int
    rtt_us: int
    arrived_ms: int  # since data came last
    segments: int  # received with data
    mss: int  # bytes in a segment that it accepts
    sent_ms: int = 0  # since data were sent last
    flies: bool = False  # data are not acknowledged
    is_silent: bool = False  # for so long that the peer must hold its acknowledgement back


class _Answer(Struct, frozen=True):
    """A connection in sock_diag's answer."""

    inode: int
    family: int
    key: bytes  # inet_diag_sockid, by which it can be asked for
    unread_bytes: int
    counters: Counters | None
    held_us: int = 0
    """Time in which its peer held an acknowledgement back, by samples, that is not yet taken from the time in which it was busy."""

    @property
    def ends(self) -> bytes:
        """Its own and its peer's port and address."""
        return self.key[:36]

    @property
    def ends_there(self) -> bytes:
        """The other end's port and address, and then its own."""
        return self.key[2:4] + self.key[:2] + self.key[20:36] + self.key[4:20]


class _Known(Struct):
    """A process that is read."""

    process: Process
    space: int  # inode of its network namespace
    inodes: frozenset[int] = frozenset()  # of its sockets
    serves: bool = False  # it listens: of its connections only those are read that it made itself
    connections: dict[int, _Answer] = {}  # by inode
    interfaces: dict[bytes, str] = {}
    wire: Wire = Wire()
    read_ns: int = 0  # CLOCK_MONOTONIC of the last reading; 0: none yet

    def has_under_way(self, span: _Span) -> bool:
        """True if data keep arriving at the connection, or an answer of another host is awaited there."""
        there = _address(span.after.family, span.after.key, _PEER)
        far = self.serves and there not in self.interfaces and not there.startswith(b"\x7f")
        return span.arrives or (far and span.is_asked)


class Wires:
    """Fills `Process.wire` of trainers that are ranks, and of feeders."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._asked: dict[int, socket.socket | None] = {}  # network namespace -> netlink socket in it; None where it may not be entered
        self._due_ns = self._find_ns = 0

    def read(self, t_ns: int, ranks: Iterable[Process], feeders: Iterable[Process] = (), servers: Iterable[Process] = ()) -> None:
        """Read the connections of ``ranks``, of ``feeders``, and of ``servers`` those that they made themselves, if that is due."""
        if t_ns < self._due_ns:
            return
        began_ns = time.thread_time_ns()
        listening = {process.pid: process for process in servers}
        wanted = {process.pid: process for process in (*ranks, *feeders, *listening.values())[:MOST_READ]}
        for pid in self._known.keys() - wanted.keys():
            self._known.pop(pid).process.wire = None
        self._leave(self._asked.keys() - {one.space for one in self._known.values()})
        if t_ns >= self._find_ns and wanted:
            self._find(wanted, listening.keys())
            self._find_ns = t_ns + max(FIND_NS, int((time.thread_time_ns() - began_ns) / SHARE))
            began_ns = time.thread_time_ns()
        for space in {party.space for party in self._known.values() if party.connections}:
            self._read(space, t_ns)
        self._due_ns = t_ns + max(EVERY_NS, int((time.thread_time_ns() - began_ns) / SHARE))

    def close(self) -> None:
        """Close all sockets."""
        self._leave({*self._asked})

    def _leave(self, spaces: Collection[int]) -> None:
        """Close the sockets in network namespaces without such processes: they would keep these namespaces alive."""
        for space in spaces:
            if (asked := self._asked.pop(space)) is not None:
                asked.close()

    def _find(self, processes: dict[int, Process], servers: Collection[int]) -> None:
        """Find the processes' connections; the table is dumped only where a process has other sockets than before."""
        stale = set[int]()
        for pid, process in processes.items():
            inodes = frozenset(map(int, open_sockets(process.folder) or ()))
            space = netns.namespace(process.folder)
            party = self._known.get(pid)
            if party is None or party.process is not process:
                party = self._known[pid] = _Known(process, space)
            serves = pid in servers
            if inodes != party.inodes or space != party.space or serves != party.serves:
                party.inodes, party.space, party.serves = inodes, space, serves
                stale.add(space)
        for space in stale:
            pid = next(pid for pid, party in self._known.items() if party.space == space)
            if (asked := self._socket(space, pid)) is None:
                continue
            here = [party for party in self._known.values() if party.space == space]
            wanted = frozenset[int]().union(*(party.inodes for party in here))
            taken = {one.key[:2] for one in _dump(asked, _LISTEN)} if any(party.serves for party in here) else set[bytes]()
            found = {one.inode: one for one in _dump(asked, _ESTABLISHED) if one.inode in wanted}
            self._leave([space])  # a dump that was too long goes on in its socket
            self._socket(space, pid)
            names = self._names(here[0])
            for party in here:
                own = (one for inode, one in found.items() if inode in party.inodes and not (party.serves and one.key[:2] in taken))
                party.connections = {one.inode: party.connections.get(one.inode, one) for one in islice(own, MOST_CONNECTIONS)}
                party.interfaces = names

    @staticmethod
    def _names(party: _Known) -> dict[bytes, str]:
        """Address -> interface, in the process's network namespace."""
        folder = party.process.folder
        return (_within(party.space, f"{folder}ns/net", _ipv4_names) or {}) | _ipv6_names(f"{folder}net/if_inet6")

    def _socket(self, space: int, pid: int) -> socket.socket | None:
        """The netlink socket in a network namespace, opened at the first call."""
        if space not in self._asked:
            self._asked[space] = _within(space, f"{self._proc}{pid}/ns/net", _netlink)
        return self._asked[space]

    def _read(self, space: int, t_ns: int) -> None:
        """Read the connections of the processes in one namespace, and add to the counters of these."""
        asked, here = self._asked.get(space), [party for party in self._known.values() if party.space == space]
        if asked is None:
            return
        found = {one.inode: one for one in _ask(asked, [one for party in here for one in party.connections.values()])}
        ends = {one.ends: one for one in found.values()}
        for party in here:
            pairs = [(before, after) for inode, before in party.connections.items() if (after := found.get(inode)) is not None]
            passed_ns = t_ns - party.read_ns if party.read_ns else 0
            found_spans = (_span(before, after, ends.get(after.ends_there), passed_ns) for before, after in pairs)
            spans = [one for one in found_spans if one is not None]
            party.wire = _added(party, spans, passed_ns)
            party.connections |= {after.inode: after for _, after in pairs} | {one.after.inode: one.after for one in spans}
            party.process.wire, party.read_ns = party.wire, t_ns


class _Span(Struct, frozen=True):
    """What a connection did between two readings."""

    after: _Answer
    busy_us: int
    sent: int
    received: int
    retrans: int
    rtt_us: int
    arrives: bool
    is_asked: bool


def _span(before: _Answer, after: _Answer, there: _Answer | None, passed_ns: int) -> _Span | None:
    """What a connection did in ``passed_ns``; ``there``: its other end, if that is on this host."""
    old, new = before.counters, after.counters
    if old is None or new is None:
        return None
    unread = new.is_silent and new.retrans == old.retrans if there is None else there.unread_bytes > 0
    busy_us, passed_us = max(0, new.busy_us - old.busy_us), passed_ns // 1000
    held_us = before.held_us + (passed_us if new.flies and unread else 0)
    taken_us = min(busy_us, held_us)
    return _Span(
        replace(after, held_us=min(held_us - taken_us, passed_us)), busy_us - taken_us, max(0, new.acked - old.acked),
        max(0, new.received - old.received), max(0, new.retrans - old.retrans), new.rtt_us, keeps_arriving(old, new), awaits_answer(new),
    )  # fmt: skip


def _added(party: _Known, spans: list[_Span], passed_ns: int) -> Wire:
    """The counters with what the connections did since they were read last; a connection that is seen first counts from now on."""
    wire = party.wire
    if not spans:
        return wire
    busiest = max(spans, key=lambda one: (one.busy_us, one.sent))
    return Wire(
        busy_ns=wire.busy_ns + busiest.busy_us * 1000,
        sent_bytes=wire.sent_bytes + sum(one.sent for one in spans),
        received_bytes=wire.received_bytes + sum(one.received for one in spans),
        retrans=wire.retrans + sum(one.retrans for one in spans),
        rtt_us=busiest.rtt_us,
        interface=interface_of(busiest.after.family, busiest.after.key, party.interfaces),
        arriving_ns=wire.arriving_ns + (passed_ns if any(map(party.has_under_way, spans)) else 0),
        own=_end(busiest.after, _OWN, 0), peer=_end(busiest.after, _PEER, 2),
    )  # fmt: skip


def keeps_arriving(before: Counters, after: Counters) -> bool:
    """True if a connection receives a stream: see the head of this module."""
    segments, large = after.segments - before.segments & 0xFFFFFFFF, min(after.mss, LARGE_BYTES) / 2
    return after.arrived_ms <= ARRIVES_MS and segments > 1 and after.received - before.received >= segments * large


def awaits_answer(now: Counters) -> bool:
    """True if a connection sent last, and has answers: see the head of this module."""
    return now.sent_ms < now.arrived_ms <= ANSWERED_MS


def interface_of(family: int, key: bytes, names: dict[bytes, str]) -> str:
    """The interface that has a connection's own address, else that address."""
    own = _address(family, key, _OWN)
    return names.get(own) or _text(own)


def _address(family: int, key: bytes, at: int) -> bytes:
    """An address in an inet_diag_sockid; of IPv4 also where an IPv6 socket uses it."""
    found = key[at : at + (4 if family == socket.AF_INET else 16)]
    return found[12:] if found.startswith(bytes(10) + b"\xff\xff") and len(found) == 16 else found


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)


def _end(one: _Answer, address: int, port: int) -> str:
    """``10.0.0.1:29500`` or ``[fe80::1]:29500``."""
    found = _address(one.family, one.key, address)
    return f"{_text(found) if len(found) == 4 else f'[{_text(found)}]'}:{int.from_bytes(one.key[port : port + 2], 'big')}"


def ranks_of(trainers: Iterable[Process]) -> list[Process]:
    """The trainers that may be ranks: all of several, and one alone whose launcher announced others."""
    known = list(trainers)
    return known if len(known) > 1 else [one for one in known if _has_peers(one)]


def _has_peers(process: Process) -> bool:
    return (number_in(process.info.env, SIZE_VARIABLES) or 0) > 1


def _within(space: int, path: str, make: Callable[[], _Made]) -> _Made | None:
    """What ``make`` returns within a network namespace, which ``path`` in /proc names; None where that may not be entered. A thread enters
    another one, and ends there."""
    made = list[_Made]()

    def make_there() -> None:
        with suppress(OSError):
            if netns.enter(path, space):
                made.append(make())

    if space == netns.namespace("/proc/self/"):
        with suppress(OSError):
            made.append(make())
    elif space:
        thread = start_thread(make_there, "gputop-netns")
        if thread is not None:
            thread.join()
    return made[0] if made else None


def _netlink() -> socket.socket:
    asked = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
    asked.settimeout(0.05)
    return asked


def _ipv4_names() -> dict[bytes, str]:
    """IPv4 address -> interface (SIOCGIFCONF)."""
    room = ctypes.create_string_buffer(_IFREQ_BYTES * _MOST_NAMES)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("iP", len(room), ctypes.addressof(room)))
    used = struct.unpack("iP", answer)[0]
    rows = (room.raw[at : at + _IFREQ_BYTES] for at in range(0, min(used, len(room)), _IFREQ_BYTES))
    return {row[20:24]: clean(row[:16].split(b"\0")[0].decode("utf-8", "replace")) for row in rows}


def _ipv6_names(path: str) -> dict[bytes, str]:
    """IPv6 address -> interface, from /proc/PID/net/if_inet6."""
    found = dict[bytes, str]()
    for line in (read_list(path, 1 << 14) or b"").splitlines():
        words = line.split()
        if len(words) == 6 and len(words[0]) == 32:
            with suppress(ValueError):
                found[bytes.fromhex(words[0].decode("ascii", "replace"))] = clean(words[5].decode("utf-8", "replace"))
    return found


def _dump(asked: socket.socket, states: int) -> Iterator[_Answer]:
    """All TCP sockets of the socket's namespace in some states."""
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << _INFO - 1, 0, states) + bytes(48)
        own = next(_NUMBERS) & 0xFFFFFFFF
        yield from _answers(asked, _NLMSG.pack(_NLMSG.size + len(request), BY_FAMILY, _DUMP, own, 0) + request, own, 0)


def listening() -> list[tuple[int, bytes, int, int]]:
    """(family, own address, port, inode) of each TCP socket that listens in this thread's network; none where the kernel does not answer.

    /proc/net/tcp has the same, and walks the whole table of connections for it: milliseconds on a machine with much memory.
    """
    found = list[tuple[int, bytes, int, int]]()
    with suppress(OSError), _netlink() as asked:
        for one in _dump(asked, _LISTEN):
            size = 4 if one.family == socket.AF_INET else 16
            found.append((one.family, one.key[4 : 4 + size], int.from_bytes(one.key[:2], "big"), one.inode))
    return found


def _ask(asked: socket.socket, connections: list[_Answer]) -> Iterator[_Answer]:
    """The connections as they are now; those that were closed are left out. All are asked for at once."""
    messages, own = list[bytes](), next(_NUMBERS) & 0xFFFFFFFF
    for one in connections:
        request = _REQUEST.pack(one.family, socket.IPPROTO_TCP, 1 << _INFO - 1, 0, _ESTABLISHED) + one.key
        messages.append(_NLMSG.pack(_NLMSG.size + len(request), BY_FAMILY, REQUEST, own, 0) + request)
    for at in range(0, len(messages), MOST_CONNECTIONS):
        some = messages[at : at + MOST_CONNECTIONS]
        yield from _answers(asked, b"".join(some), own, len(some))


def _answers(asked: socket.socket, request: bytes, own: int, most: int) -> Iterator[_Answer]:
    """The answers to the request with the number ``own``: as many as ``most``, errors included; with 0, as many as come before the end of a
    dump. Answers to an earlier one, which came too late or were too many, are passed over."""
    left, read = most, 0
    with suppress(OSError):  # a timeout: an answer was lost
        asked.send(request)
        while read < MOST_BYTES and (left or not most):
            data = asked.recv(1 << 16)
            read += len(data)
            for kind, number, message in _messages(data):
                if number != own:
                    continue
                left -= 1
                if kind == _DONE or (kind == ERROR and not most):
                    return
                if kind == BY_FAMILY and len(message) >= _MESSAGE_BYTES:
                    yield _answer(message)


def _messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(type, number, payload) of each netlink message."""
    at = 0
    while at + _NLMSG.size <= len(data):
        length, kind, _flags, number, _port = _NLMSG.unpack_from(data, at)
        if length < _NLMSG.size:
            return
        yield kind, number, data[at + _NLMSG.size : at + length]
        at += length + 3 & ~3


def _answer(message: bytes) -> _Answer:
    """A connection, by an inet_diag_msg and its attributes."""
    found = (value for kind, value in attributes(message, _MESSAGE_BYTES) if kind == _INFO and len(value) >= _INFO_BYTES)
    inode, unread = (int(struct.unpack_from("=I", message, at)[0]) for at in (_INODE, _MESSAGE_UNREAD))
    return _Answer(inode, message[0], message[_ID], unread, next(map(_counters, found), None))


def _counters(info: bytes) -> Counters:
    """The counters in a tcp_info."""
    unacked, sent_ms, arrived_ms, ack_ms, rtt_us, mss, retrans, min_rtt_us, segments = _WORDS.unpack_from(info)
    acked, received = struct.unpack_from("=QQ", info, _ACKED)
    busy_us, unread_us = struct.unpack_from("=QQ", info, _BUSY)
    is_silent = min(sent_ms, ack_ms) >= SILENT_MS + 2 * min_rtt_us // 1000
    return Counters(
        max(0, busy_us - unread_us), acked, received, retrans, rtt_us, arrived_ms, segments, mss, sent_ms, unacked > 0, is_silent
    )
