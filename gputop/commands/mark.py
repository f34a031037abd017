"""Drop a marker into what gputop watches and records on this machine, from a shell or a training script."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from gputop.console import tell
from gputop.errors import UserError

if TYPE_CHECKING:
    import socket

EXAMPLES = """examples:
  gputop mark "epoch 3"
  gputop mark "$(date +%T) checkpoint begins"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text."""
    parser.add_argument("text", nargs="+", metavar="TEXT", help="what to write at this moment")


def run(args: argparse.Namespace) -> int:
    """Send it to every collector of this user."""
    import time

    from gputop.frame import Mark
    from gputop.markers import MAX_TEXT
    from gputop.markers import pack_mark

    text = os.fsencode(" ".join(args.text)).decode("utf-8", "replace").strip()
    if not text:
        raise UserError("the marker is empty", code=2)
    if not _send(pack_mark(Mark(time.monotonic_ns(), text))):
        raise UserError("no gputop of yours is running here that could take the marker: start `gputop` or `gputop record` first")
    if len(text) > MAX_TEXT:
        tell(f"the marker has its first {MAX_TEXT} characters only")
    return 0


def _send(datagram: bytes) -> int:
    """How many took it."""
    import socket

    from gputop.markers import sockets

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
        return sum(_send_to(sending, path, datagram) for path in sockets())


def _send_to(sending: socket.socket, path: str, datagram: bytes) -> bool:
    """Whether it was taken; a socket whose collector is gone is taken away."""
    try:
        sending.sendto(datagram, path)
    except ConnectionRefusedError:
        os.unlink(path)
        return False
    except OSError:
        return False
    return True
