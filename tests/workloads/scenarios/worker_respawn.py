"""Short epochs without persistent_workers: at each one's end the workers die, and the new ones import everything again."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    epoch = loader(Images(cpu_ms=0.5, length=8 * 50), workers=2, start="spawn", persistent_workers=False)
    trainer.fit(epoch, trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
