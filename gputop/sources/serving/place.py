"""Finds where an engine serves its metrics: a listening socket of its own processes, in their own network.

No port is asked because it is open: those of its ranks belong to NCCL and others. It has to be the port that the engine's command line
names, else its usual one, else the only one at which the process listens that takes its requests.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from gputop.model.engines import Engine
from gputop.sources import Unavailable, parse
from gputop.sources.files import read_once
from gputop.sources.procfs import wire
from gputop.sources.procfs.ends import LISTENS, open_sockets, rows_of_table

TABLE_BYTES = 1 << 16  # most bytes read of a table of sockets: 430 that listen, which stand first in it
MOST_FRONTS = 32  # processes of one engine whose sockets are looked at
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Listening(NamedTuple):
    """A listening TCP socket."""

    host: str  # that reaches it from this host
    port: int
    inode: bytes


class Place(NamedTuple):
    """Where a server is asked."""

    host: str
    port: int
    inodes: frozenset[bytes]  # of the sockets that listen there

    @property
    def address(self) -> str:
        """``127.0.0.1:8000``"""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def find(proc: str, engine: Engine, fronts: Iterable[int], above: Iterable[int]) -> Place | None:
    """Where the engine is asked; None while nothing listens. ``fronts``: its processes that take requests; ``above``: those that started
    them, whose command lines name the port, too. Unavailable if several ports may be meant, or its sockets may not be looked at."""
    pids = list(fronts)[:MOST_FRONTS]
    held, unread = set[bytes](), 0
    for pid in pids:
        own = open_sockets(f"{proc}{pid}/")
        unread += own is None
        held |= own or set()
    if unread and not held:
        raise Unavailable("its sockets may not be looked at", "run gputop as root, or as the server's user")
    ports: dict[int, list[Listening]] = {}
    for one in listening(f"{proc}{pids[0]}/") if held else ():
        if one.inode in held:
            ports.setdefault(one.port, []).append(one)
    if not ports:
        return None
    lines = [parse.cmdline(read_once(f"{proc}{pid}/cmdline", parse.CMDLINE_BYTES) or b"") for pid in (*pids, *above)]
    named = next((port for line in lines if (port := named_port(line, engine.flags)) is not None), None)
    port = next((one for one in (named, engine.port) if one in ports), None)
    if port is None and named is None and len(ports) == 1:
        port = next(iter(ports))
    if port is None:
        if named is not None:
            return None  # it listens at others first
        raise Unavailable(f"it listens on {len(ports)} ports, and none is its usual one", "gputop --serving http://127.0.0.1:PORT")
    best = min(ports[port], key=lambda one: (one.host != "127.0.0.1", one.host))
    return Place(best.host, port, frozenset(one.inode for one in ports[port]))


def is_still(proc: str, pid: int, place: Place) -> bool:
    """True if no other socket than those found listens at the port, in the network of the process."""
    here = {one.inode for one in listening(f"{proc}{pid}/") if one.port == place.port}
    return bool(here) and here <= place.inodes


def listening(folder: str) -> Iterator[Listening]:
    """The TCP sockets that listen in the network of this thread, which is that of the process under ``folder``."""
    known = wire.listening()
    for family, own, port, inode in known:
        host = socket.inet_ntop(family, own)
        yield Listening(_ANY.get(host, host), port, b"%d" % inode)
    if known:
        return
    for name, kind in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for row in takewhile(lambda row: row[3] == LISTENS, rows_of_table(f"{folder}net/{name}", 10, TABLE_BYTES)):
            address, _, number = row[1].partition(b":")
            host = _host(address, kind)
            yield Listening(_ANY.get(host, host), int(number, 16), row[9])


def _host(address: bytes, family: int) -> str:
    """An address of the kernel's table: hexadecimal words of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(address.decode())
    packed = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return socket.inet_ntop(family, packed)


def named_port(words: list[str], flags: Iterable[str]) -> int | None:
    """The port that a command line names by one of these flags: ``--port 8000`` or ``--port=8000``."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            text = value if equals else next(iter(words[number + 1 : number + 2]), "")
            if text.isascii() and text.isdecimal() and len(text) < 6:
                return int(text)
    return None
