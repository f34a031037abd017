"""An object store on loopback, run as a process of its own, whose answers can be made slow."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SAMPLE_BYTES = 200_000
_QUICK_BYTES_PER_S, _SLOW_BYTES_PER_S = 1e9, 24e6
_CHUNK = 32 << 10


def fetch(connection: socket.socket) -> bytes:
    """One sample."""
    connection.sendall(b"?")
    parts, left = [], SAMPLE_BYTES
    while left:
        parts.append(connection.recv(min(left, 1 << 16)))
        if not parts[-1]:
            raise ConnectionError("the store closed the connection")
        left -= len(parts[-1])
    return b"".join(parts)


@contextmanager
def serving(running) -> Iterator[None]:  # type: ignore[no-untyped-def]
    """A quick store, its port in the workload's environment."""
    with running.child([sys.executable, "-m", "tests.workloads.store", str(running.folder / "slow")], stdout=-1) as server:
        running.env["GPUTOP_STORE_PORT"] = server.stdout.readline().strip()
        yield


def _answer(connection: socket.socket, slow_flag: Path) -> None:
    with suppress(ConnectionError):  # a client may leave in the middle
        _send_samples(connection, slow_flag)


def _send_samples(connection: socket.socket, slow_flag: Path) -> None:
    sample = os.urandom(SAMPLE_BYTES)
    while connection.recv(1):
        began, sent = time.monotonic(), 0
        while sent < SAMPLE_BYTES:
            connection.sendall(sample[sent : sent + _CHUNK])
            sent += _CHUNK
            rate = _SLOW_BYTES_PER_S if slow_flag.exists() else _QUICK_BYTES_PER_S
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))


def _serve(slow_flag: Path) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, slow_flag), daemon=True).start()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
