"""Twenty workers are far ahead while the main thread works out metrics after each step; so many have their calls read less often."""

from __future__ import annotations

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    compute = trainer.compute(12)

    def step(batch: object) -> None:
        compute(batch)
        numbers(12)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=20), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
