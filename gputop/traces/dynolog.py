"""A dynolog that runs on this machine already, asked for traces of the jobs that have registered with it.

Its clients write an int32 length and a JSON object to TCP port 1778, and read an answer of the same kind (dynolog/src/rpc of dynolog). It
passes the configuration on when the job asks, each 5 s by Kineto's default. Any user may listen on that port: a dynolog is asked only if
the kernel reports that root or the job's own user listens.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from contextlib import suppress

from gputop.sources.files import read_list
from gputop.system.errors import Unavailable
from gputop.system.text import clean

PORT = 1778
_WITHIN_S = 3.0
_MOST_BYTES = 1 << 16  # of an answer
_TABLE_BYTES = 1 << 22  # of /proc/net/tcp
_LISTENS = b"0A"  # state of a socket, in hexadecimal
_LENGTH = struct.Struct("@i")


def owner(port: int = PORT, root: str = "/") -> int | None:
    """Uid of the user who listens on the port; None if no user does (/proc/net/tcp, /proc/net/tcp6). Of several, one that is not root."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in (read_list(os.path.join(root, "proc/net", name), _TABLE_BYTES) or b"").splitlines()[1:]:
            words = line.split()
            with suppress(ValueError, IndexError):
                if words[3] == _LISTENS and int(words[1].rpartition(b":")[2], 16) == port:
                    found.add(int(words[7]))
    return max(found, default=None)


def ask(pid: int, uid: int, config: str, port: int = PORT) -> None:
    """Have dynolog pass a configuration on to a process. Raises Unavailable with the reason."""
    listens = owner(port)
    if listens is None:
        raise Unavailable("no dynolog answers on this machine")
    if listens not in (0, uid):
        raise Unavailable("the program on dynolog's port belongs to another user, and is not asked")
    asked = json.dumps({"fn": "setKinetOnDemandRequest", "config": config, "job_id": 0, "pids": [pid], "process_limit": 1}).encode()
    try:
        with socket.create_connection(("localhost", port), timeout=_WITHIN_S) as link:
            link.sendall(_LENGTH.pack(len(asked)) + asked)
            until_s = time.monotonic() + _WITHIN_S
            (size,) = _LENGTH.unpack(_received(link, _LENGTH.size, until_s))
            if not 0 <= size <= _MOST_BYTES:
                raise ValueError
            answer = json.loads(_received(link, size, until_s))
    except OSError as error:
        raise Unavailable(f"dynolog does not answer: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise Unavailable("dynolog's answer cannot be read") from None
    _judge(answer, pid)


def _received(link: socket.socket, size: int, until_s: float) -> bytes:
    """So many bytes. Raises ValueError if fewer come, TimeoutError if they come a few at a time until ``until_s``."""
    data = b""
    while len(data) < size:
        link.settimeout(max(0.001, until_s - time.monotonic()))
        piece = link.recv(size - len(data))
        if not piece:
            raise ValueError
        data += piece
    return data


def _judge(answer: object, pid: int) -> None:
    """Raise Unavailable unless the process will get the configuration."""
    if not isinstance(answer, dict):
        raise Unavailable("dynolog's answer cannot be read")
    if answer.get("activityProfilersTriggered"):
        return
    if answer.get("activityProfilersBusy"):
        raise Unavailable(f"dynolog has another trace of process {pid} under way")
    status = clean(str(answer.get("status", "")), 60)
    known = f"dynolog does not know process {pid}{f' ({status})' if status else ''}"
    raise Unavailable(known, "it registers once it has imported torch, if dynolog ran before")
