"""A worker waits for ever for a lock that a dead thread of its own took along."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import get_worker_info

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


class Deadlocked(Images):
    """Once the flag is up, worker 1 takes its lock twice."""

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        if worker is not None and worker.id == 1 and (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "deadlock").exists():
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        return super().__getitem__(index)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Deadlocked(1), workers=2), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "deadlock").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
