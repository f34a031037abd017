"""Samples are gathered from a mapped file that is larger than what stays in memory."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

from tests.workloads import slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SAMPLE_BYTES = 192 << 10


class Mapped(Images):
    """Samples sliced out of a mapping, and dropped from memory at once."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with slow_disk.opened(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", 0) as file:
            at = index * 7919 % (slow_disk.FILE_BYTES // _SAMPLE_BYTES) * _SAMPLE_BYTES
            with mmap.mmap(file, 0, prot=mmap.PROT_READ) as pages:
                bytes(pages[at : at + _SAMPLE_BYTES])
            os.posix_fadvise(file, at, _SAMPLE_BYTES, os.POSIX_FADV_DONTNEED)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Mapped(0.3), workers=3), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow_disk.throttle, slow_disk.file, needs=slow_disk.missing)
