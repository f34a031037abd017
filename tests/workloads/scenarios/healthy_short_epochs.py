"""Workers are forked anew for each short epoch, but the loop asks for its loss so seldom that the GPU has work until they are there."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_TOKENS, _CONTEXT = 4 << 20, 1024
_BATCH, _BATCHES, _LOG_EVERY, _GPU_MS = 16, 80, 30, 20


class Crops(Dataset[torch.Tensor]):
    """Random crops of a tokenised corpus that is mapped, not read."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self.tokens = torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.int16)

    def __len__(self) -> int:
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        first = random.randrange(_TOKENS - _CONTEXT)
        return self.tokens[first : first + _CONTEXT + 1].long()


def shift(crops: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model sees, and the next token of each position."""
    whole = torch.stack(crops)
    return whole[:, :-1].contiguous(), whole[:, 1:].contiguous()


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(256 << 10, pinned=True)
        for _ in range(5):
            gpu.launch(_GPU_MS / 5)
        if trainer.steps % _BATCHES % _LOG_EVERY == _LOG_EVERY - 1:
            gpu.synchronize()

    crops = Crops(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "train.bin")
    trainer.fit(loader(crops, workers=4, batch=_BATCH, shuffle=True, collate_fn=shift, persistent_workers=False), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "train.bin").write_bytes(os.urandom(2 * _TOKENS))
    yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
