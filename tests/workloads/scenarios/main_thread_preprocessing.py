"""No workers: the training script itself decodes the images between two steps."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=5), workers=0), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
