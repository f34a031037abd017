"""Workers stream tar shards through a shuffle buffer: eight batches come at once, then none for long, and the queue never runs dry."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_SHARDS, _SAMPLES, _SAMPLE_BYTES = 8, 64, 16 << 10


class Shards(IterableDataset[torch.Tensor]):
    """Each worker reads whole shards, in any order and for ever, and gives the samples of each in any order."""

    def __init__(self, folder: Path, cpu_ms: float) -> None:
        self.folder, self.cpu_ms = folder, cpu_ms

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            with tarfile.open(self.folder / f"shard-{random.randrange(_SHARDS)}.tar") as shard:
                packed = [shard.extractfile(member).read() for member in shard]  # type: ignore[union-attr]
            samples = [decode(self.cpu_ms) for _ in packed]
            random.shuffle(samples)
            yield from samples


def train(trainer: Trainer) -> None:
    shards = Shards(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), cpu_ms=3)
    trainer.fit(loader(shards, workers=2, prefetch_factor=12), trainer.compute(40))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for number in range(_SHARDS):
        with tarfile.open(running.folder / f"shard-{number}.tar", "w") as shard:
            for sample in range(_SAMPLES):
                member = tarfile.TarInfo(f"{number}-{sample}.jpg")
                member.size = _SAMPLE_BYTES
                shard.addfile(member, io.BytesIO(os.urandom(_SAMPLE_BYTES)))
    yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
