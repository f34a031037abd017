"""Ports for programs that must be told where to listen."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 20_000


def free_port() -> int:
    """A port of this host that is free, and that the kernel gives to nobody who asks for any: a program has time to start there."""
    last = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chance = random.SystemRandom()
    while True:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", chance.randrange(_FIRST, last) if last > _FIRST else 0))
            except OSError:
                continue
            return int(one.getsockname()[1])
