"""What the demo's processes do with a CPU: real work, measured in this thread's CPU time and not by the clock."""

from __future__ import annotations

import os
import time
import zlib
from threading import Thread

from gputop.demo.processes import die_with_parent, set_name

_PACKED = zlib.compress(bytes(range(256)) * 64, 1)


def decode_image(cpu_ms: float) -> None:
    """Unpack and normalize an image, as often as takes ``cpu_ms`` of CPU time."""
    until = time.thread_time() + cpu_ms / 1e3
    while time.thread_time() < until:
        pixels = zlib.decompress(_PACKED)
        bytes(pixel ^ 0x55 for pixel in pixels[:512])


def hog(name: str, parent_pid: int, threads: int, seconds: float) -> None:
    """A process called ``name`` that compresses log lines on so many threads (zlib works outside the GIL) for ``seconds``."""
    die_with_parent(parent_pid)
    set_name(name)
    for _ in range(threads - 1):
        Thread(target=_compress, args=(seconds,), daemon=True).start()
    _compress(seconds)


def _compress(seconds: float) -> None:
    lines, end = os.urandom(1 << 16), time.monotonic() + seconds
    while time.monotonic() < end:
        zlib.compress(lines, 6)
