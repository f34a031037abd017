"""A table of features is a flat file that two spawned workers map and gather random rows from; the pod's memory limit is lowered.

While the file fits, a gather is a matter of memory. Then the container may hold a sixth of it: each row that is touched is a major fault,
and each fault has to push out pages that will be needed again soon. The disk is quick and reads only what has just been thrown away; its
readings are the symptom. The memory limit, and the reclaim that it forces, is the cause.
"""

from __future__ import annotations

import mmap
import os
import random
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import slow_disk, tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROW_BYTES = 4096
_ROWS_PER_SAMPLE = 150
_ROOM_BYTES = 32 << 20


class Table(Dataset[torch.Tensor]):
    """Sums over rows that lie anywhere in the file."""

    mapped: mmap.mmap | None = None

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.mapped is None:
            with _path().open("rb") as file:
                self.mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self.mapped.madvise(mmap.MADV_RANDOM)
        chance, rows = random.Random(index), slow_disk.FILE_BYTES // _ROW_BYTES
        gathered = bytearray()
        for _ in range(_ROWS_PER_SAMPLE):
            at = chance.randrange(rows) * _ROW_BYTES
            gathered += self.mapped[at : at + 512]
        return torch.frombuffer(gathered, dtype=torch.uint8).float().reshape(_ROWS_PER_SAMPLE, -1).mean(0)


def _path() -> Path:
    return Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"


def train(trainer: Trainer) -> None:
    with _path().open("rb") as file:  # warm, as after the first epoch
        while file.read(4 << 20):
            pass
    trainer.fit(loader(Table(), workers=2, start="spawn"), trainer.compute(15))


def limited(running: Running) -> AbstractContextManager[object]:
    return tight_memory.limited(running, _ROOM_BYTES)


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, limited, tight_memory.group, needs=tight_memory.missing)
