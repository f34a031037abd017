"""Sends a marker to the collectors of this user, for `gputop mark` and for experiments."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress

from gputop.model.frame import Mark
from gputop.sources.marks import ELSEWHERE, open_own, pack_mark, peer_uid, sockets
from gputop.system.privilege import invoking_user

PATIENCE_S = 0.5  # s for all collectors together: a training that marks its steps must not wait for one that is stopped
_LEAST_S = 0.001  # s for each collector even if `PATIENCE_S` is used up: the kernel takes 0 for no limit


def send_mark(text: str) -> tuple[int, list[str]]:
    """Send a marker to all collectors; returns the number that took it, and the sockets that had no room."""
    message = pack_mark(Mark(time.monotonic_ns(), text))
    sudo = invoking_user()
    owners = frozenset({os.geteuid(), sudo[0] if sudo is not None else os.geteuid()})
    until, took, busy = time.monotonic() + PATIENCE_S, 0, []
    for path, descriptor in sockets(owners):
        try:
            taken = _send_to(path, descriptor, owners, message, max(until - time.monotonic(), _LEAST_S))
        finally:
            os.close(descriptor)
        took += taken is True
        busy += [path] if taken is False else []
    return took, busy


def _send_to(path: str, descriptor: int, owners: frozenset[int], message: bytes, wait_s: float) -> bool | None:
    """True if the collector took the marker, False if it had no room; None if no collector of ``owners`` listens. A socket without a
    collector is removed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sending:
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(wait_s), int(wait_s % 1 * 1e6)))
        try:
            sending.connect(f"/proc/self/fd/{descriptor}")
            if peer_uid(sending) not in owners:
                return None
            sending.send(message, socket.MSG_NOSIGNAL)
        except BlockingIOError:  # the socket's queue is full
            return False
        except ConnectionRefusedError:
            if not path.startswith(ELSEWHERE):  # which may be a link to a file of ours
                _remove(path)
            return None
        except OSError:
            return None
    return True


def _remove(path: str) -> None:
    """Remove a socket, if its directory belongs to this user alone."""
    with suppress(OSError):
        folder = open_own(os.path.dirname(path), os.geteuid())
        try:
            os.unlink(os.path.basename(path), dir_fd=folder)
        finally:
            os.close(folder)
