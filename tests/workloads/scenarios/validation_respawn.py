"""A short validation after every 30 steps, by a loader that spawns its workers anew each time; the training loader keeps its own."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_EVERY = 30


def train(trainer: Trainer) -> None:
    compute, forward = trainer.compute(30), trainer.compute(12)
    validation = loader(Images(cpu_ms=0.5, length=8 * 12), workers=2, start="spawn", persistent_workers=False)

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _EVERY == _EVERY - 1:
            for held_out in validation:
                forward(held_out)

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
