"""A tokenized corpus is mapped and read at random positions, and an autoscaler lowers the pod's memory limit to what it "uses".

Until then all of the file lies in the page cache. The recommender counted only anonymous memory, so the new limit leaves an eighth of the
file room: pages are reclaimed as soon as they have come, and nearly each access faults and reads its page again. The disk is as fast as
it was and the workers' code has not changed: memory pressure is the cause.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import slow_disk, tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROOM_BYTES = slow_disk.FILE_BYTES // 8
_PLACES = 200
_PAGE = mmap.PAGESIZE


class Tokens(Dataset[torch.Tensor]):
    """Samples of `_PLACES` snippets each, from anywhere in the mapped file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self._mapped.madvise(mmap.MADV_RANDOM)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        chance = random.Random(index)
        places = [chance.randrange(slow_disk.FILE_BYTES // _PAGE) * _PAGE for _ in range(_PLACES)]
        return torch.frombuffer(bytearray().join(self._mapped[place : place + 64] for place in places), dtype=torch.uint8)


def train(trainer: Trainer) -> None:
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
    with path.open("rb") as file:  # once through, so that all of it is cached
        while file.read(1 << 20):
            pass
    trainer.fit(loader(Tokens(path), workers=2), trainer.compute(20))


@contextmanager
def lowered(running: Running) -> Iterator[None]:
    """The autoscaler resizes the pod in place."""
    with tight_memory.limited(running, _ROOM_BYTES):
        yield


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, lowered, tight_memory.group, needs=tight_memory.missing)
