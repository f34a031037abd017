"""Workers that keep decoded samples in memory, each its own: the container has no swap, so the data set leaves its page cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import slow_disk, tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.memory_neighbour import Table

_WORKERS, _KEPT_BYTES = 2, 512 << 10
_SPARE_BYTES = 64 << 20
_LEFT_BYTES = 24 << 20


class Kept(Table):
    """A table whose decoded samples are kept once a flag is up, until each worker has as many as it may."""

    def __init__(self, cpu_ms: float) -> None:
        super().__init__(cpu_ms)
        self.kept: list[bytearray] = []
        self.most = (slow_disk.FILE_BYTES + _SPARE_BYTES - _LEFT_BYTES) // _WORKERS // _KEPT_BYTES

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        if len(self.kept) < self.most and (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "keep").exists():
            self.kept.append(bytearray(b"x" * _KEPT_BYTES))
        return sample


def train(trainer: Trainer) -> None:
    (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples").read_bytes()  # into the page cache
    trainer.fit(loader(Kept(0.3), _WORKERS), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with tight_memory.limited(running, slow_disk.FILE_BYTES + _SPARE_BYTES):
        (running.folder / "keep").touch()
        yield


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, tight_memory.group, needs=tight_memory.missing)
