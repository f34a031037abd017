"""Workers read their samples past the page cache from a disk that gives 24 MB/s."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

from tests.workloads import slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES = 256 << 10


class Direct(Images):
    """Samples in one large file, read with O_DIRECT."""

    def __getitem__(self, index: int) -> torch.Tensor:
        path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
        sample = mmap.mmap(-1, _SAMPLE_BYTES)  # O_DIRECT wants an aligned buffer
        with slow_disk.opened(path, os.O_DIRECT) as file:
            os.preadv(file, [sample], index * 7919 % (slow_disk.FILE_BYTES // _SAMPLE_BYTES) * _SAMPLE_BYTES)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Direct(0.3), workers=2), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow_disk.throttle, slow_disk.file, needs=slow_disk.missing)
