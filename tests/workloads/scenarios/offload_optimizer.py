"""The optimizer is offloaded: each step the gradients come to the host, all its CPUs run Adam, and the weights go back to the GPU."""

from __future__ import annotations

import time

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_LAYERS, _LAYER = 4, 1 << 20
_UPDATE_S = 0.06


def train(trainer: Trainer) -> None:
    torch.set_num_threads(cpus())
    gpu, compute, optimizer = trainer.gpu, trainer.compute(35), adam()
    count = 8 << 20

    def step(batch: object) -> None:
        compute(batch)
        gpu.copy_out(count)
        until = time.monotonic() + _UPDATE_S  # as large a model as this host updates in that time; the same few layers stand for it
        while time.monotonic() < until:
            optimizer.step()
        gpu.copy_in(count)

    trainer.fit(loader(Images(cpu_ms=0.2), workers=1), step)


def adam() -> torch.optim.Optimizer:
    """A fused one, with gradients."""
    layers = [torch.nn.Parameter(torch.randn(_LAYER)) for _ in range(_LAYERS)]
    for layer in layers:
        layer.grad = torch.randn(_LAYER)
    return torch.optim.Adam(layers, fused=True)


SCENARIO = Scenario(Label("wait-heavy", "host-optimizer"), train)
