"""What a process has sockets for: it waits to be asked, or for whom it asked. Both sleep in the same poll."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from contextlib import suppress

from gputop.sources.files import read_list
from gputop.sources.procfs.waits import FUTEX, TIMEOUTS

LISTENING, CONNECTED, NONE, UNREADABLE = "listening", "connected", "none", ""
_ACCEPTING = {"x86_64": (43, 288), "aarch64": (202, 242)}
POLLS = (frozenset(TIMEOUTS) - {FUTEX}).union(_ACCEPTING.get(platform.machine(), ()))
"""poll, select, epoll_wait and their kin; accept and accept4."""
MOST_FILES = 1024
_TABLE_BYTES = 1 << 18
"""Of a machine with thousands of connections what listens stands within it, and UNIX sockets are mostly older ones."""
_LISTENS = b"0A"
"""State of a TCP socket; the kernel lists those that listen first."""
_ACCEPTS = b"00010000"
"""Flags of a UNIX socket."""


def use_of_sockets(proc: str, pid: int, above: Iterable[int]) -> str:
    """`LISTENING` where it has a socket that listens, or one of those ``above`` it in its session, which may ask in their clients' name;
    `CONNECTED` where it has one that is no UNIX socket; `NONE`; `UNREADABLE` where its descriptors, or those of one above, cannot be seen.
    """
    listening, local = _sockets(f"{proc}{pid}/net/")
    own = _open_sockets(f"{proc}{pid}/fd/")
    others = [_open_sockets(f"{proc}{other}/fd/") for other in _in_session(pid, above)]
    if own is None or None in others:
        return UNREADABLE
    if any(inodes & listening for inodes in (own, *others) if inodes):
        return LISTENING
    return CONNECTED if own - local else NONE


def _in_session(pid: int, above: Iterable[int]) -> list[int]:
    """Who started the session (a login, a terminal's server) is none of its programs."""
    with suppress(OSError):
        session = os.getsid(pid)
        return [other for other in above if os.getsid(other) == session]
    return []


def _sockets(folder: str) -> tuple[set[bytes], set[bytes]]:
    """Inodes of the sockets that listen, and of all UNIX ones."""
    listening = {inode for name in ("tcp", "tcp6") for inode in _listening_tcp(read_list(folder + name, _TABLE_BYTES))}
    local = set()
    for line in read_list(folder + "unix", _TABLE_BYTES).splitlines()[1:]:
        fields = line.split(None, 7)
        if len(fields) > 6:
            local.add(fields[6])
            if fields[3] == _ACCEPTS:
                listening.add(fields[6])
    return listening, local


def _listening_tcp(table: bytes) -> Iterable[bytes]:
    for line in table.splitlines()[1:]:
        fields = line.split(None, 10)
        if len(fields) < 10 or fields[3] != _LISTENS:
            return
        yield fields[9]


def _open_sockets(folder: str) -> set[bytes] | None:
    """None where they cannot be seen."""
    found = set()
    try:
        for name in os.listdir(folder)[:MOST_FILES]:
            with suppress(FileNotFoundError):
                target = os.readlink(folder + name)
                if target.startswith("socket:["):
                    found.add(target[8:-1].encode())
    except OSError:
        return None
    return found
