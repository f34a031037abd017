"""Thousands of tiny kernels a step from a slow script: each is over before the next is launched."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for _ in range(4000):
            gpu.launch(0.004, blocks=8)
            for _ in range(60):  # what the framework does in Python around each launch
                pass
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
