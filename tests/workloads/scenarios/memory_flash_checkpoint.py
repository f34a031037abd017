"""Workers look features up in a mapped store that fits the pod, until a flash checkpoint in shared memory takes that room."""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario
from tests.workloads.slow_disk import FILE_BYTES

_ROW_BYTES, _SLOTS, _EVENTS = 256, 90, 64
_ROWS = FILE_BYTES // _ROW_BYTES
_CHECKPOINT_BYTES, _SPARE_BYTES = 150 << 20, 40 << 20


class Impressions(Dataset[torch.Tensor]):
    """What a user saw lately: quantized features of some items of the catalogue, straight from the page cache."""

    def __init__(self, store: Path) -> None:
        with store.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), FILE_BYTES, access=mmap.ACCESS_READ)
        self.items = torch.frombuffer(mapped, dtype=torch.int8).view(_ROWS, _ROW_BYTES)
        self.items.sum(dtype=torch.int64)  # warms the cache
        mapped.madvise(mmap.MADV_RANDOM)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.items[torch.randint(_ROWS, (_SLOTS,))]


class FlashCheckpoint(threading.Thread):
    """Keeps the host's optimizer state a second time, in shared memory, for whoever restarts after a crash."""

    def __init__(self, due: Path) -> None:
        super().__init__(name="flash-ckpt", daemon=True)
        self.due = due
        self.copy = torch.empty(0, dtype=torch.uint8)

    def run(self) -> None:
        while not self.due.exists():
            time.sleep(0.05)
        self.copy = torch.empty(_CHECKPOINT_BYTES, dtype=torch.uint8).share_memory_().fill_(1)  # type: ignore[no-untyped-call]


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    impressions = Impressions(folder / "samples")
    checkpoint = FlashCheckpoint(folder / "due")
    checkpoint.start()
    trainer.fit(loader(impressions, workers=2, batch=_EVENTS, prefetch_factor=4), trainer.compute(40))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with tight_memory.limited(running, FILE_BYTES + _SPARE_BYTES):
        (running.folder / "due").touch()
        yield


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, tight_memory.group, needs=tight_memory.missing)
