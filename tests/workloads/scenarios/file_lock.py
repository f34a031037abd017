"""Workers that keep a shared cache consistent with flock(2), for as long as a sample takes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


class Cached(Images):
    """Images decoded under an exclusive file lock."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "cache.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Cached(7), workers=3), trainer.compute(20))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
