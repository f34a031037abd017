"""A service on the host that makes the batches, as tf.data service or a gRPC preprocessing server does: the trainer asks over loopback.

`python -m tests.workloads.data_service FOLDER PROCESSES CPU_MS SLOW_CPU_MS`: processes forked from one listener, each of which answers a
request (the batch's number) with a length and a batch that took CPU_MS, or SLOW_CPU_MS once `slow` is in the folder.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

from tests.workloads import cgroup
from tests.workloads.runner import Running, descendants

BATCH_BYTES = 256 << 10
_AHEAD = 2
"""Requests under way on a connection."""


@contextmanager
def serving(running: Running, processes: int, cpu_ms: float, slow_cpu_ms: float = 0.0, group: Path | None = None) -> Iterator[None]:
    """The service, in a control ``group`` of its own if there is one; its port is in the workload's environment."""
    command = [sys.executable, "-m", "tests.workloads.data_service", str(running.folder), str(processes), str(cpu_ms), str(slow_cpu_ms)]
    with running.child(command, stdout=-1) as service:
        assert service.stdout is not None
        running.env["GPUTOP_SERVICE_PORT"] = service.stdout.readline().strip()
        if group:
            cgroup.add(group, [service.pid, *descendants([service.pid])])
        yield


def batches(connections: int, room: int = 4) -> Iterator[bytes]:
    """Batches of all connections as they come, which threads read ahead, a thread each."""
    ready: Queue[bytes] = Queue(room)
    for number in range(connections):
        Thread(target=_fetch, args=(number, connections, ready), daemon=True).start()
    return iter(ready.get, b"")


def _fetch(number: int, connections: int, ready: Queue[bytes]) -> None:
    service = socket.create_connection(("127.0.0.1", int(os.environ["GPUTOP_SERVICE_PORT"])))
    for ahead in range(_AHEAD):
        service.sendall(struct.pack("<q", number + ahead * connections))
    number += _AHEAD * connections
    while head := service.recv(8, socket.MSG_WAITALL):
        ready.put(service.recv(struct.unpack("<q", head)[0], socket.MSG_WAITALL))
        service.sendall(struct.pack("<q", number))
        number += connections


def _serve(listener: socket.socket, folder: Path, cpu_ms: float, slow_cpu_ms: float) -> None:
    packed = zlib.compress(os.urandom(BATCH_BYTES // 8) * 8, 1)
    trainer, _ = listener.accept()
    while trainer.recv(8, socket.MSG_WAITALL):
        until = time.thread_time() + (slow_cpu_ms if (folder / "slow").exists() else cpu_ms) / 1e3
        while time.thread_time() < until:
            batch = zlib.decompress(packed)
        trainer.sendall(struct.pack("<q", len(batch)) + batch)


def _main(folder: Path, processes: int, cpu_ms: float, slow_cpu_ms: float) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    listener = socket.create_server(("127.0.0.1", 0))
    for _ in range(processes):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            ctypes.CDLL(None).prctl(15, b"data_service")
            try:
                _serve(listener, folder, cpu_ms, slow_cpu_ms)
            except ConnectionError:  # the trainer leaves first
                os._exit(0)
    print(listener.getsockname()[1], flush=True)
    signal.pause()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
