"""A ranking model that listens on a UNIX socket for one client, which asks for eight rankings at once every two and a half seconds.

Truth: idle, none. Between the bursts the client sleeps, and the model's main thread at the client's connection.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tests.workloads import program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_BURST, _PAUSE_S, _GPU_MS = 8, 2.5, 20.0


def train(_trainer: Trainer) -> None:
    program.become(serve)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with program.serving(running, ask):
        yield


def serve() -> None:
    """Rank whatever the client sends."""
    job, path = program.Job(), program.folder() / "ranker"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client, _ = listener.accept()
        while program.receive(client, 64):
            job.compute(_GPU_MS)
            job.step()
            client.sendall(b"+")


def ask() -> None:
    """Wait until the model listens, then ask in bursts."""
    print(0, flush=True)
    path = program.folder() / "ranker"
    while True:
        try:
            model = socket.socket(socket.AF_UNIX)
            model.connect(str(path))
            break
        except OSError:
            model.close()
            time.sleep(0.1)
    with suppress(OSError):  # the model has ended
        while True:
            for _ in range(_BURST):
                model.sendall(bytes(64))
                model.recv(1)
            time.sleep(_PAUSE_S)


SCENARIO = Scenario(Label("idle", "none"), train, prepare=prepare)
