"""Workers read a data set that does not stay in the page cache: buffered reads, each a miss, from a slow disk."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tests.workloads import slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES = 128 << 10


class Cold(Images):
    """Samples read through the page cache and dropped from it, as a data set larger than memory is."""

    def __getitem__(self, index: int) -> torch.Tensor:
        at = index * 7919 % (slow_disk.FILE_BYTES // _SAMPLE_BYTES) * _SAMPLE_BYTES
        with slow_disk.opened(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", 0) as file:
            os.pread(file, _SAMPLE_BYTES, at)
            os.posix_fadvise(file, at, _SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Cold(0.5), workers=2), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow_disk.throttle, slow_disk.file, needs=slow_disk.missing)
