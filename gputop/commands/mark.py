"""Set a marker in every gputop that you run on this machine, from a shell or a training script.

It reaches collectors of the same user; with sudo those of root and of the user who typed it.
"""

from __future__ import annotations

import argparse
import os
from contextlib import suppress

from gputop.system.console import notify
from gputop.system.errors import UserError
from gputop.system.text import clean, from_shell

PATIENCE_S = 0.5  # s for all collectors together: a training that marks its steps must not wait for one that is stopped
_LEAST_S = 0.001  # s for each collector even if `PATIENCE_S` is used up: the kernel takes 0 for no limit
EXAMPLES = """examples:
  gputop mark "epoch 3"
  gputop mark "$(date +%T) checkpoint begins"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", type=from_shell, nargs="+", metavar="TEXT", help="the marker")


def run(args: argparse.Namespace) -> int:
    """Send the marker to every collector. UserError where none took it."""
    import time

    from gputop.model.frame import Mark
    from gputop.sources.marks import MAX_TEXT, pack_mark, places

    text = " ".join(args.text).strip()
    if not text:
        raise UserError("the marker is empty", code=2)
    took, busy = _send(pack_mark(Mark(time.monotonic_ns(), text)))
    if not took and not busy:
        none, as_root = clean(places(os.geteuid())[0]), ", or mark as root where it runs in a container" if os.geteuid() else ""
        raise UserError(
            f"nobody heard the marker: no gputop of yours is running here (none in {none}, none that /proc shows): "
            f"start `gputop` or `gputop record` first{as_root}"
        )
    if busy:
        which = ", ".join(_called(path) for path in busy)
        said = f"has not taken the marker within {PATIENCE_S:g} s: is it stopped?"
        if not took:
            raise UserError(f"{which} {said}")
        notify(f"{which} {said} {took} others have")
    if len(text) > MAX_TEXT:
        notify(f"the marker was cut to its first {MAX_TEXT} characters")
    return 0


def _called(path: str) -> str:
    """``gputop PID``, by the socket's name."""
    return f"gputop {clean(os.path.basename(path)[len('marks-') : -len('.sock')])}"


def _send(message: bytes) -> tuple[int, list[str]]:
    """Send to all; how many took it, and the sockets of those that had no room."""
    import time

    from gputop.sources.marks import sockets
    from gputop.system.privilege import invoking_user

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
    """Whether the collector took it, None where no collector of ``owners`` listens; a socket without a collector is removed."""
    import socket
    import struct

    from gputop.sources.marks import ELSEWHERE, peer_uid

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
    from gputop.sources.marks import open_own

    with suppress(OSError):
        folder = open_own(os.path.dirname(path), os.geteuid())
        try:
            os.unlink(os.path.basename(path), dir_fd=folder)
        finally:
            os.close(folder)
