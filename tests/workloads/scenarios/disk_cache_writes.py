"""Workers keep every sample in a cache on disk, synchronously, and the disk takes 20 MB/s."""

from __future__ import annotations

import mmap
import os
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES = 256 << 10
_WRITE_BYTES_PER_S = 20 << 20


class Kept(Images):
    """Each sample is written past the page cache once it is made."""

    def __getitem__(self, index: int) -> torch.Tensor:
        path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
        with slow_disk.opened(path, os.O_DIRECT | os.O_WRONLY) as file:
            os.pwrite(file, mmap.mmap(-1, _SAMPLE_BYTES), index * 7919 % (slow_disk.FILE_BYTES // _SAMPLE_BYTES) * _SAMPLE_BYTES)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Kept(0.5), workers=2), trainer.compute(40))


def disturb(running: Running) -> AbstractContextManager[None]:
    return slow_disk.throttle(running, cgroup.limit_writes, _WRITE_BYTES_PER_S)


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, slow_disk.file, needs=slow_disk.missing)
