"""A checkpoint of a gigabyte-scale model every few seconds: the GPU waits, and nobody is at fault."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TRAIN_S, _SAVE_S = 4.0, 2.0
_PART = 8 << 20


def train(trainer: Trainer) -> None:
    compute, folder = trainer.compute(30), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    path, flag, weights = folder / "checkpoint.pt", folder / "save", torch.zeros(_PART // 4)
    saved = [0.0]

    def step(batch: object) -> None:
        compute(batch)
        if flag.exists() and time.monotonic() - saved[0] > _TRAIN_S:
            save(weights, path)
            saved[0] = time.monotonic()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


def save(weights: torch.Tensor, path: Path) -> None:
    """Write shards to disk for two seconds."""
    until = time.monotonic() + _SAVE_S
    while time.monotonic() < until:
        write(weights, path)


def write(weights: object, path: Path) -> None:
    """To the disk itself."""
    with path.open("wb") as file:
        torch.save(weights, file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "save").touch()
    yield


SCENARIO = Scenario(Label("idle", "pause"), train, disturb)
