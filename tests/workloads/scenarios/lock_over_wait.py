"""Workers take turns at one archive; whoever has its lock waits for a slow disk arm, with all CPUs idle."""

from __future__ import annotations

import multiprocessing
import time

import torch

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios import lock_contention


class Archive(lock_contention.Shared):
    """Samples behind a seek that only one process at a time may do."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            time.sleep(0.008)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Archive(0.5, multiprocessing.Lock()), workers=4), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
