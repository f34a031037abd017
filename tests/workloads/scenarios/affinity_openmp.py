"""OMP_PROC_BIND in the environment: OpenMP pins the main thread to one CPU as torch is imported, and forked workers inherit that."""

from __future__ import annotations

import random
import time

import torch
from torch.nn import functional
from torch.utils.data import Dataset, RandomSampler

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_IMAGES, _SIDE, _CROP = 512, 64, 48
_BATCH, _VIEW_CPU_S, _MICRO_STEPS = 12, 0.0024, 2
_MICRO_STEP_MS = 40
_Views = tuple[torch.Tensor, torch.Tensor]


class Pairs(Dataset[_Views]):
    """Two views of each image, for contrastive learning; the images themselves are in memory."""

    def __init__(self) -> None:
        self.images = torch.randint(0, 256, (_IMAGES, 3, _SIDE, _SIDE), dtype=torch.uint8)

    def __len__(self) -> int:
        return _IMAGES

    def __getitem__(self, index: int) -> _Views:
        return view(self.images[index]), view(self.images[index])


def view(image: torch.Tensor) -> torch.Tensor:
    """Crop, flip, jitter and blur, as often as it takes to use its CPU time."""
    until = time.thread_time() + _VIEW_CPU_S
    while True:
        top, left = random.randrange(_SIDE - _CROP), random.randrange(_SIDE - _CROP)
        crop = image[:, top : top + _CROP, left : left + _CROP].float().div(255)
        if random.random() < 0.5:
            crop = crop.flip(2)
        jittered = crop.mul(random.uniform(0.6, 1.4)).add(random.uniform(-0.2, 0.2)).clamp(0, 1)
        blurred = functional.avg_pool2d(jittered[None], 5, stride=1, padding=2)[0]
        if time.thread_time() >= until:
            return blurred


def train(trainer: Trainer) -> None:
    gpu, pairs = trainer.gpu, Pairs()

    def step(_views: object) -> None:
        gpu.copy_in(2 << 20, pinned=True)
        for _ in range(8):
            gpu.launch(_MICRO_STEP_MS / 8)
        if trainer.steps % _MICRO_STEPS == 0:
            gpu.synchronize()

    sampler = RandomSampler(pairs, replacement=True, num_samples=1 << 20)
    trainer.fit(loader(pairs, workers=3, batch=_BATCH, sampler=sampler, drop_last=True), step)


SCENARIO = Scenario(Label("input-bound", "affinity"), train, env={"OMP_PROC_BIND": "true", "OMP_PLACES": "threads"})
