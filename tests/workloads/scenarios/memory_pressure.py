"""The job's memory limit leaves no room for the data set it maps: pages are read, dropped and read again."""

from __future__ import annotations

import mmap
import os
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from tests.workloads import tight_memory
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PAGES_PER_SAMPLE = 250
_ROOM_BYTES = 16 << 20


class Mapped(Images):
    """Samples gathered from random pages of a mapped file."""

    pages: mmap.mmap | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.pages is None:
            with (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples").open("rb") as file:
                self.pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self.pages.madvise(mmap.MADV_RANDOM)
        at = torch.randint(len(self.pages) // 4096, (_PAGES_PER_SAMPLE,)).tolist()
        sum(self.pages[page * 4096] for page in at)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Mapped(0.5), workers=2), trainer.compute(30))


def disturb(running: Running) -> AbstractContextManager[object]:
    return tight_memory.limited(running, _ROOM_BYTES)


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, tight_memory.group, needs=tight_memory.missing)
