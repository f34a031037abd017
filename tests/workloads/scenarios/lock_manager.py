"""Spawned workers share a `Manager().Lock()`, as scripts do because it can be pickled: they wait for it on a socket of its server."""

from __future__ import annotations

import multiprocessing
from threading import Lock

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


class Guarded(Images):
    """Images from a reader that may be used by one process at a time."""

    def __init__(self, cpu_ms: float, lock: Lock) -> None:
        super().__init__(cpu_ms)
        self.lock = lock

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            image = decode(self.cpu_ms)
        return image.flip(2)


def train(trainer: Trainer) -> None:
    with multiprocessing.get_context("spawn").Manager() as manager:
        trainer.fit(loader(Guarded(5, manager.Lock()), workers=4, start="spawn"), trainer.compute(20))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
