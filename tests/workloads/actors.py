"""Actors as Ray keeps them: processes of a daemon, not of the trainer, asked for batches through UNIX sockets."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.data import decode
from tests.workloads.runner import Running

_BATCH, _REPLY_BYTES = 8, 8 * 3 * 48 * 48
_ASKED_AHEAD = 3
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


@contextmanager
def serving(running: Running, actors: int, cpu_ms: float, group: Path | None = None) -> Iterator[None]:
    """So many actors, each of which answers a request with a batch whose samples cost ``cpu_ms`` each; all in a control ``group``."""
    command = [sys.executable, "-m", "tests.workloads.actors", str(running.folder), str(actors), str(cpu_ms), str(group or "")]
    with running.child(command, stdout=-1) as raylet:
        raylet.stdout.readline()  # type: ignore[union-attr]
        yield


def batches(folder: Path) -> Iterator[bytes]:
    """A batch of each actor in turn; each has been asked for `_ASKED_AHEAD`."""
    actors = []
    for path in sorted(folder.glob("actor-*.sock")):
        actors.append(socket.socket(socket.AF_UNIX))
        actors[-1].connect(str(path))
    number = 0
    while True:
        ask = [actors[number % len(actors)]] if number else actors * _ASKED_AHEAD
        for actor in ask:
            actor.sendall(struct.pack("<Q", number))
        actor = actors[number % len(actors)]
        yield actor.recv(_REPLY_BYTES, socket.MSG_WAITALL)
        number += 1


def _raylet(folder: Path, actors: int, cpu_ms: float) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in range(actors):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / f"actor-{number:03}.sock"))
        listener.listen()
        if os.fork() == 0:
            _act(listener, cpu_ms)
    print("ready", flush=True)
    signal.pause()


def _act(listener: socket.socket, cpu_ms: float) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"ray::Decoder")
    trainer, _ = listener.accept()
    while trainer.recv(8, socket.MSG_WAITALL):
        for _ in range(_BATCH):
            decode(cpu_ms)
        trainer.sendall(bytes(_REPLY_BYTES))
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[4]:
        cgroup.add(Path(sys.argv[4]), [os.getpid()])
    _raylet(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
