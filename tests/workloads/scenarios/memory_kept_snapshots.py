"""The trainer begins to keep its latest weights for their average; in the container they take the room of the mapped node features."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import slow_disk, tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_FEATURES = 256
_NEIGHBOURS, _SEEDS = 1000, 48
_SNAPSHOT_BYTES, _SNAPSHOTS = 46 << 20, 5
_SPARE_BYTES = 64 << 20


class Neighbourhoods(Dataset[torch.Tensor]):
    """The mean of the features around a seed, gathered from a table that is mapped from its file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            table = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        table.madvise(mmap.MADV_RANDOM)
        self.features = torch.frombuffer(table, dtype=torch.float32).view(-1, _FEATURES)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> torch.Tensor:
        nodes = torch.randint(len(self), (_NEIGHBOURS,))
        return self.features[nodes].mean(0)


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    (folder / "samples").read_bytes()  # into the page cache
    snapshots: list[torch.Tensor] = []
    learn = trainer.compute(400, kernels=8)

    def step(batch: object) -> None:
        learn(batch)
        if len(snapshots) < _SNAPSHOTS and (folder / "averaging").exists():
            snapshots.append(torch.ones(_SNAPSHOT_BYTES, dtype=torch.uint8))

    trainer.fit(loader(Neighbourhoods(folder / "samples"), workers=2, batch=_SEEDS), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with tight_memory.limited(running, slow_disk.FILE_BYTES + _SPARE_BYTES):
        (running.folder / "averaging").touch()
        yield


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, tight_memory.group, needs=tight_memory.missing)
