"""Thousands of tiny kernels a step: the GPU is never free of one, and hardly works."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for _ in range(8000):
            gpu.launch(0.005, blocks=6)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
