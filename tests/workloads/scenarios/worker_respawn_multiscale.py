"""Multi-scale training: each two dozen batches another image size, and with it a new dataset, a new DataLoader and new workers."""

from __future__ import annotations

import random

import torch
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

from tests.workloads.data import decode
from tests.workloads.loop import Over, Trainer, loader
from tests.workloads.scenario import Label, Scenario

SIDES = (192, 224, 256, 288, 320)
BATCH, ROUND = 8, 24
LOSS_EVERY = 6
GPU_MS_PER_PIXEL = 0.0016


class Resized(Dataset[torch.Tensor]):
    """Images of one size."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __len__(self) -> int:
        return BATCH * ROUND

    def __getitem__(self, index: int) -> torch.Tensor:
        return interpolate(decode(0.5)[None], size=self.side)[0]


def train(trainer: Trainer) -> None:
    gpu, sizes = trainer.gpu, random.Random(7)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes, pinned=True)
        for share in (0.3, 0.6, 0.1):
            gpu.launch(batch.shape[-1] ** 2 * GPU_MS_PER_PIXEL * share)
        if trainer.steps % LOSS_EVERY == 0:
            gpu.synchronize()

    try:
        while True:
            dataset = Resized(sizes.choice(SIDES))
            trainer.epoch(loader(dataset, workers=3, start="forkserver", batch=BATCH, shuffle=True), step)
    except Over:
        return


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
