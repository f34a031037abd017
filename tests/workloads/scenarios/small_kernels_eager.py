"""An eager loop over hundreds of parameters: each small kernel costs the host more than the GPU, which idles between them."""

from __future__ import annotations

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_KERNELS, _KERNEL_MS, _LOSS_EVERY = 1500, 0.005, 20


def train(trainer: Trainer) -> None:
    gpu, shape = trainer.gpu, torch.zeros(4)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 18, pinned=True)
        for _ in range(_KERNELS):
            shape.add_(1.0).mul_(0.5)
            gpu.launch(_KERNEL_MS)
        if trainer.steps % _LOSS_EVERY == 0:
            gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.1), workers=2), step)


SCENARIO = Scenario(Label("wait-heavy", "small-kernels"), train, env={"OMP_NUM_THREADS": "1"})
