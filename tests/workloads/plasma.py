"""An object store in shared memory with its coordinator and workers, as Ray has them: no process of the job is the trainer's child.

The `raylet` forks its workers, keeps who made which object, and answers the trainer's `get` (both over UNIX sockets) once the object is in
the store, a file in /dev/shm that all map; only names of slots go through sockets. `python -m tests.workloads.plasma FOLDER WORKERS CPU_MS
SLOW_CPU_MS`: a worker takes CPU_MS for an object, SLOW_CPU_MS once `slow` is in the folder; worker 0 waits for ever where `hung` is.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import selectors
import signal
import socket
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.workloads.runner import Running

OBJECT_BYTES = 512 << 10
_AHEAD = 2
"""Objects that are asked of a worker before the last is taken."""


@contextmanager
def serving(running: Running, workers: int, cpu_ms: float, slow_cpu_ms: float = 0.0) -> Iterator[None]:
    """The raylet and its workers; the trainer finds them in the workload's folder."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="plasma-") as store:
        store.truncate(workers * _AHEAD * OBJECT_BYTES)
        (running.folder / "store").symlink_to(store.name)
        command = [sys.executable, "-m", "tests.workloads.plasma", str(running.folder), str(workers), str(cpu_ms), str(slow_cpu_ms)]
        with running.child(command, stdout=-1) as raylet:
            assert raylet.stdout is not None
            raylet.stdout.readline()
            yield


def objects(folder: Path) -> Iterator[memoryview]:
    """Object after object, in order, as `ray.get` gives them: a view of the store, valid until the next."""
    raylet = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    raylet.connect(str(folder / "raylet"))
    store = memoryview(_mapped(folder))
    while True:
        raylet.send(b"get")
        (slot,) = struct.unpack("<q", raylet.recv(8))
        yield store[slot * OBJECT_BYTES : (slot + 1) * OBJECT_BYTES]


def _mapped(folder: Path) -> mmap.mmap:
    with (folder / "store").open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _coordinate(listener: socket.socket, workers: list[socket.socket]) -> None:
    """Give out object n when worker n % workers has made it, and ask that worker for another."""
    driver, _ = listener.accept()
    made = [0] * len(workers)
    given = waiting = 0
    with selectors.DefaultSelector() as selector:
        selector.register(driver, selectors.EVENT_READ)
        for number, worker in enumerate(workers):
            selector.register(worker, selectors.EVENT_READ, number)
            for slot in range(_AHEAD):
                worker.send(struct.pack("<q", number * _AHEAD + slot))
        taken: tuple[int, int] | None = None
        while True:
            for key, _ in selector.select():
                key.fileobj.recv(8)  # type: ignore[union-attr]
                if key.data is not None:
                    made[key.data] += 1
                    continue
                waiting += 1
                if taken:  # the trainer is done with the last one
                    workers[taken[0]].send(struct.pack("<q", taken[1]))
            owner, turn = given % len(workers), given // len(workers)
            if waiting and made[owner] > turn:
                taken = owner, owner * _AHEAD + turn % _AHEAD
                driver.send(struct.pack("<q", taken[1]))
                given, waiting = given + 1, 0


def _work(raylet: socket.socket, folder: Path, number: int, cpu_ms: float, slow_cpu_ms: float) -> None:
    store, seed = _mapped(folder), os.urandom(OBJECT_BYTES // 8)
    packed = zlib.compress(seed * 8, 1)
    while order := raylet.recv(8):
        (slot,) = struct.unpack("<q", order)
        if number == 0 and (folder / "hung").exists():
            _wait_for_ever()
        until = time.thread_time() + (slow_cpu_ms if (folder / "slow").exists() else cpu_ms) / 1e3
        while time.thread_time() < until:
            pixels = zlib.decompress(packed)
        store[slot * OBJECT_BYTES : (slot + 1) * OBJECT_BYTES] = pixels
        raylet.send(order)


def _wait_for_ever() -> None:
    """Read from a peer that accepted the connection and never answers."""
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def _main(folder: Path, workers: int, cpu_ms: float, slow_cpu_ms: float) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "raylet"))
    listener.listen()
    sockets = []
    for number in range(workers):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            libc.prctl(1, signal.SIGKILL)
            libc.prctl(15, b"ray::MapWorker")
            _work(theirs, folder, number, cpu_ms, slow_cpu_ms)
            os._exit(0)
        sockets.append(ours)
    libc.prctl(15, b"raylet")
    print("ready", flush=True)
    with suppress(ConnectionError, struct.error):  # the trainer leaves first
        _coordinate(listener, sockets)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
