"""The trainer is a server: a feeder, started on its own by the launcher, connects to its socket and pushes pickled batches.

Such a setup scales by more feeders, and only one was started. It makes a batch in twice the time of a step and runs on one
CPU all the time, while the other CPUs idle; the trainer's receiving thread waits in `recv` with an empty queue. The samples
are ordinary images, so that a second and a third feeder would feed the GPU: too few of them is the cause.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import Queue
from threading import Thread

import torch

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_BATCH, _CPU_MS = 16, 3.0


def _feed(path: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    while not Path(path).exists():
        time.sleep(0.05)
    with Client(path, "AF_UNIX") as trainer:
        while True:
            batch = {"image": torch.stack([decode(_CPU_MS) for _ in range(_BATCH)]), "label": list(range(_BATCH))}
            trainer.send_bytes(pickle.dumps(batch))


def _received(listener: Listener) -> Iterator[object]:
    ready: Queue[object] = Queue(4)

    def receive(feeder: Connection) -> None:
        while True:
            ready.put(pickle.loads(feeder.recv_bytes()))

    def accept() -> None:
        while True:
            Thread(target=receive, args=(listener.accept(),), daemon=True).start()

    Thread(target=accept, daemon=True).start()
    return iter(ready.get, None)


def train(trainer: Trainer) -> None:
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "batches.sock"
    with Listener(str(path), "AF_UNIX") as listener:
        trainer.fit(_received(listener), trainer.compute(22))


@contextmanager
def feeder(running: Running) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.workloads.scenarios.too_few_feeders", str(running.folder / "batches.sock")]
    with running.child(command):
        yield


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train, prepare=feeder)

if __name__ == "__main__":
    with suppress(ConnectionError, EOFError):
        _feed(sys.argv[1])
