"""Workers poll for the shards that a downloader brings; one shard never comes, and the worker whose turn it is polls for ever."""

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

_SHARDS, _SAMPLES = 24, 8


class Downloaded(Images):
    """Samples of shards that are waited for, without a limit, until they are there."""

    def __getitem__(self, index: int) -> torch.Tensor:
        shard = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / f"shard-{index // _SAMPLES % _SHARDS}"
        while not shard.exists():
            time.sleep(0.1)
        return super().__getitem__(index)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Downloaded(1), workers=3), trainer.compute(30))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for number in range(_SHARDS):
        (running.folder / f"shard-{number}").touch()
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "shard-7").unlink()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
