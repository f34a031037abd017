"""Rank 0 writes the checkpoint of both; rank 1 waits for it in the next all-reduce of the host, as gloo does, asleep."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Client, Listener
from pathlib import Path

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.pause import disturb, write

_TRAIN_S, _STEP_MS = 2.5, 50.0
_FLOATS, _PARTS = 8 << 20, 10


def train(trainer: Trainer) -> None:
    gpu, folder = trainer.gpu, Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    address, flag, saved = str(folder / "ranks.sock"), folder / "save", [0.0]
    if trainer.rank == 0:
        with Listener(address) as listener:
            other = listener.accept()
    else:
        while not os.path.exists(address):
            os.sched_yield()
        other = Client(address)
    weights = [torch.randn(_FLOATS) for _ in range(_PARTS if trainer.rank == 0 else 0)]

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(_STEP_MS)
        gpu.synchronize()
        other.send(None)
        other.recv()
        if trainer.rank == 0 and flag.exists() and time.monotonic() - saved[0] > _TRAIN_S:
            gpu.copy_out(_PARTS * _FLOATS * 4)
            save(weights, folder / "checkpoint.pt")
            saved[0] = time.monotonic()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


def save(weights: list[torch.Tensor], path: Path) -> None:
    """The moving average first, then everything to disk."""
    for part in weights:
        part.mul_(0.999)
    write(weights, path)


SCENARIO = Scenario(Label("idle", "pause"), train, disturb, ranks=2, devices=2, env={"OMP_NUM_THREADS": "1"})
