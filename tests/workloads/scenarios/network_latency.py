"""A far object store: every sample a request of its own, each answered late."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_LATENCY_S = 0.04


class Far(Images):
    """A new connection with a timeout for each sample, as an HTTP client makes it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        port = int(os.environ["GPUTOP_STORE_PORT"])
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"?")
            connection.recv(1 << 16)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Far(0.3), workers=4), trainer.compute(30))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        running.env["GPUTOP_STORE_PORT"] = str(listener.getsockname()[1])
        threading.Thread(target=_serve, args=(listener, running.folder / "far"), daemon=True).start()
        yield


def _serve(listener: socket.socket, far: Path) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, far), daemon=True).start()


def _answer(connection: socket.socket, far: Path) -> None:
    with connection, suppress(OSError):
        connection.recv(1)
        if far.exists():
            time.sleep(_LATENCY_S)
        connection.sendall(bytes(20_000))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    far = running.folder / "far"
    far.touch()
    yield
    far.unlink()


SCENARIO = Scenario(Label("input-bound", "network-io"), train, disturb, prepare)
