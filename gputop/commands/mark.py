"""Drop a marker into what gputop watches and records on this machine, from a shell or a training script."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gputop.console import tell
from gputop.errors import UserError
from gputop.text import clean
from gputop.text import from_shell

PATIENCE_S = 5.0
EXAMPLES = """examples:
  gputop mark "epoch 3"
  gputop mark "$(date +%T) checkpoint begins"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text."""
    parser.add_argument("text", type=from_shell, nargs="+", metavar="TEXT", help="what to write at this moment")


def run(args: argparse.Namespace) -> int:
    """Send it to every collector of this user."""
    import time

    from gputop.frame import Mark
    from gputop.markers import MAX_TEXT
    from gputop.markers import directory
    from gputop.markers import pack_mark

    text = " ".join(args.text).strip()
    if not text:
        raise UserError("the marker is empty", code=2)
    took, busy = _send(pack_mark(Mark(time.monotonic_ns(), text)))
    if not took and not busy:
        raise UserError(
            f"nobody heard the marker: no gputop of yours is running here (none in {clean(directory())}, none that /proc shows): "
            "start `gputop` or `gputop record` first" + (", or mark as root where it runs in a container" if os.geteuid() else "")
        )
    if not took:
        raise UserError(f"the gputop that runs here has not taken the marker within {PATIENCE_S:g} s: is it stopped?")
    if busy:
        tell(f"{busy} of {took + busy} gputops have not taken the marker within {PATIENCE_S:g} s")
    if len(text) > MAX_TEXT:
        tell(f"the marker has its first {MAX_TEXT} characters only")
    return 0


def _send(datagram: bytes) -> tuple[int, int]:
    """How many took it, and how many had no room for it."""
    from gputop.markers import sockets

    found = [_send_to(path, datagram) for path in sockets()]
    return found.count(True), found.count(False)


@contextmanager
def _short(path: str) -> Iterator[str]:
    """A name for a socket whose own, through another process's root, may be longer than the 107 bytes that an address holds."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _send_to(path: str, datagram: bytes) -> bool | None:
    """Whether it was taken, None where nobody is there; a socket whose collector is gone is taken away.

    A queue holds few (net.unix.max_dgram_qlen), so that the ranks of a job that all send at once have to wait for each other.
    """
    import socket

    from gputop.markers import ELSEWHERE

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.settimeout(PATIENCE_S)
        try:
            with _short(path) as name:
                sending.connect(name)  # the kernel says only of such a one when there is room
            sending.send(datagram)
        except TimeoutError:
            return False
        except ConnectionRefusedError:
            if not path.startswith(ELSEWHERE):  # what lies there may be a link to what is ours
                os.unlink(path)
            return None
        except OSError:
            return None
    return True
