"""`.item()` after every small operation: host and GPU take turns instead of overlapping."""

from __future__ import annotations

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for _ in range(300):
            gpu.launch(0.1)
            gpu.synchronize()
            numbers(0.05)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
