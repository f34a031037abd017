"""No workers: threads of the trainer read records ahead from one large file, as tf.data's do, and its disk becomes slow."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import torch

from tests.workloads import slow_disk
from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_BATCH, _RECORD_BYTES = 8, 192 << 10
_THREADS, _AHEAD = 6, 4


def batches(path: Path) -> Iterator[torch.Tensor]:
    """Shuffled batches, `_AHEAD` of them ready at most."""
    file = os.open(path, os.O_RDONLY)
    records: Queue[torch.Tensor] = Queue(_BATCH)
    ready: Queue[torch.Tensor] = Queue(_AHEAD)

    def read() -> None:
        while True:
            at = random.randrange(slow_disk.FILE_BYTES // _RECORD_BYTES) * _RECORD_BYTES
            os.pread(file, _RECORD_BYTES, at)
            os.posix_fadvise(file, at, _RECORD_BYTES, os.POSIX_FADV_DONTNEED)  # the data set is larger than memory
            records.put(decode(0.3))

    def collate() -> None:
        while True:
            ready.put(torch.stack([records.get() for _ in range(_BATCH)]))

    for work in [read] * _THREADS + [collate]:
        Thread(target=work, daemon=True).start()
    return iter(ready.get, None)


def train(trainer: Trainer) -> None:
    trainer.fit(batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow_disk.throttle, slow_disk.file, needs=slow_disk.missing)
