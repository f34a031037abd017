"""A forgotten `.to(device)`: the GPU holds memory and does nothing, each batch goes forward and backward on the CPUs."""

from __future__ import annotations

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SIZE = 32


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    trainer.gpu.launch(20)
    trainer.gpu.synchronize()
    layers = (torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3), torch.nn.AdaptiveAvgPool2d(1))
    model, batch = torch.nn.Sequential(*layers), torch.randn(32, 3, _SIZE, _SIZE)

    def step(_batch: object) -> None:
        model(batch).square().mean().backward()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
