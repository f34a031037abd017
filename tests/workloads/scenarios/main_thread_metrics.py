"""After each step the main thread works out metrics of the batch in pure Python, while its workers are far ahead."""

from __future__ import annotations

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    compute = trainer.compute(12)

    def step(batch: object) -> None:
        compute(batch)
        for _ in range(10):  # the loss of each head, fetched when it is known already
            trainer.gpu.copy_out()
            numbers(1)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
