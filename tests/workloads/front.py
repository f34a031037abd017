"""A GPU's process behind other processes of a launcher's own, none of which started it: a front, what it asks, and who asks it.

`python -m tests.workloads.front FOLDER SHAPE CPU_MS SLOW_CPU_MS`: the front listens at the UNIX socket `front` in the folder, and its GPU
process connects there and is sent one piece after another, each with an answer. Shapes: `alone`, the front makes each piece itself;
`behind`, a process at the other end of a socket pair does; `threads`, two threads of the front do. A piece takes CPU_MS, or SLOW_CPU_MS
once `slow` is in the folder; once `quiet` is there nobody asks for any; with `bursts` nobody asks for a while after each second.
"""

from __future__ import annotations

import ctypes
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.workloads.loop import Over, Trainer
from tests.workloads.runner import Running

PIECE, ANSWER = 64 << 10, 64
_AHEAD = 3
"""Pieces that are made before the answer to the first of them."""
_BURST_S, _QUIET_S = 1.0, 1.5


@contextmanager
def serving(running: Running, shape: str, cpu_ms: float, slow_cpu_ms: float = 0.0) -> Iterator[None]:
    """The front, ready to be connected to."""
    command = [sys.executable, "-m", "tests.workloads.front", str(running.folder), shape, str(cpu_ms), str(slow_cpu_ms)]
    with running.child(command, stdout=-1) as front:
        assert front.stdout is not None
        front.stdout.readline()
        yield


def engine(trainer: Trainer, step_ms: float, by_thread: bool = True, polls: bool = False) -> None:
    """Work on what the front sends until the time is over; a thread receives it, or the main thread itself does, which may poll before."""
    front = socket.socket(socket.AF_UNIX)
    front.connect(f"{os.environ['GPUTOP_WORKLOAD_FOLDER']}/front")
    pieces: queue.Queue[bytes] = queue.Queue()
    if by_thread:
        threading.Thread(target=lambda: [pieces.put(received(front, PIECE)) for _ in iter(int, 1)], daemon=True).start()
    forward = trainer.compute(step_ms, kernels=8, bytes_in=PIECE, pinned=True)
    with suppress(Over):
        while True:
            if polls:
                select.select([front], [], [])
            forward(pieces.get() if by_thread else received(front, PIECE))
            front.sendall(bytes(ANSWER))
            trainer.tick()


def received(source: socket.socket, count: int) -> bytes:
    """That many bytes of a connection; ConnectionError at its end."""
    if len(message := source.recv(count, socket.MSG_WAITALL)) == count:
        return message
    raise ConnectionError("the other side has left")


def burn(cpu_ms: float) -> bytes:
    """A piece that took so long on a CPU, in which Python's lock is free most of the time."""
    packed, until = zlib.compress(os.urandom(PIECE // 8) * 8, 1), time.thread_time() + cpu_ms / 1e3
    piece = zlib.decompress(packed)
    while time.thread_time() < until:
        piece = zlib.decompress(packed)
    return piece


def called(name: str) -> None:
    """Have this process go by ``name``, and end with who started it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    ctypes.CDLL(None).prctl(15, name.encode())


def _asked(folder: Path, began: float) -> None:
    """Return once somebody asks for another piece."""
    while (folder / "quiet").exists():
        time.sleep(3600)
    if (folder / "bursts").exists() and (time.monotonic() - began) % (_BURST_S + _QUIET_S) > _BURST_S:
        time.sleep(_QUIET_S)


def _serve(gpu: socket.socket, clients: socket.socket, make: Callable[[], bytes]) -> None:
    """Make a piece for each request, and send it on; the requests come from another process."""
    for _ in range(_AHEAD):
        received(clients, 1)
        gpu.sendall(make())
    while True:
        received(gpu, ANSWER)
        clients.sendall(b"!")
        received(clients, 1)
        gpu.sendall(make())


def _main(folder: Path, shape: str, cpu_ms: float, slow_cpu_ms: float) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def make() -> bytes:
        return burn(slow_cpu_ms if (folder / "slow").exists() else cpu_ms)

    def ask(front: socket.socket) -> None:
        began = time.monotonic()
        for _ in range(_AHEAD):
            front.sendall(b"?")
        while received(front, 1):
            _asked(folder, began)
            front.sendall(b"?")

    def tokenize(front: socket.socket) -> None:
        while received(front, 1):
            front.sendall(make())

    (clients, to_clients), (helper, to_helper) = socket.socketpair(), socket.socketpair()
    children: dict[str, Callable[[], None]] = {"clients": lambda: ask(to_clients)}
    if shape == "behind":
        children["tokenize"] = lambda: tokenize(to_helper)
    for name, work in children.items():
        if os.fork() == 0:
            called(name)
            with suppress(ConnectionError):
                work()
            os._exit(0)
    called("front")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/front")
    listener.listen()
    print("ready", flush=True)
    gpu, _ = listener.accept()
    made: queue.Queue[bytes] = queue.Queue(2)
    if shape == "threads":
        for _ in range(2):
            threading.Thread(target=lambda: [made.put(make()) for _ in iter(int, 1)], daemon=True).start()

    def asked_behind() -> bytes:
        helper.sendall(b"?")
        return received(helper, PIECE)

    with suppress(ConnectionError):
        _serve(gpu, clients, {"alone": make, "behind": asked_behind, "threads": made.get}[shape])


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
