"""Views of each sample "in parallel": a thread is started for every one of them, is gone after milliseconds, and all share one GIL."""

from __future__ import annotations

import threading

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_VIEWS, _PIXELS = 4, 22_000


def augment(out: list[int], view: int) -> None:
    """Pixel by pixel, in Python."""
    value = view
    for _ in range(_PIXELS):
        value = (value * 1_103_515_245 + 12_345) & 0x7FFFFFFF
    out[view] = value


class Views(Dataset[torch.Tensor]):
    """Crops of an image."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, _index: int) -> torch.Tensor:
        out = [0] * _VIEWS
        threads = [threading.Thread(target=augment, args=(out, view)) for view in range(_VIEWS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.tensor(out)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Views(), workers=1, batch=4), trainer.compute(15))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
