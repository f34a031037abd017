"""Workers that have a thread of their own decode an image while they would wait for it, and augment it then themselves: one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch.utils.data import Dataset

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_DECODE_MS, _AUGMENT_MS = 6.0, 7.0


@cache
def _decoder() -> ThreadPoolExecutor:
    """The process's own."""
    return ThreadPoolExecutor(1)


class Photos(Dataset[torch.Tensor]):
    """As many as anybody asks for."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        image = _decoder().submit(decode, _DECODE_MS).result()
        return torch.maximum(image, decode(_AUGMENT_MS))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Photos(), workers=cpus(), batch=8), trainer.compute(35))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
