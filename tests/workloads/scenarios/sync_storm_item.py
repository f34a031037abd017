"""Metrics fetched one number at a time, `.cpu()` by `.cpu()`."""

from __future__ import annotations

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for _ in range(100):
            gpu.launch(0.25)
            gpu.copy_out()
            gpu.synchronize()
            numbers(0.2)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
