"""All workers read through one handle behind one lock (as HDF5 files are shared): one loads, the others wait in futex."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Lock

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


class Shared(Images):
    """Images that only one process at a time may decode."""

    def __init__(self, cpu_ms: float, lock: Lock) -> None:
        super().__init__(cpu_ms)
        self.lock = lock

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Shared(6, multiprocessing.Lock()), workers=4), trainer.compute(20))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
