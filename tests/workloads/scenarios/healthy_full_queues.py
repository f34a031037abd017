"""Long steps and more workers than needed: they sleep, their queues full, and nothing is wrong with that."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=4, prefetch_factor=4), trainer.compute(120))


SCENARIO = Scenario(HEALTHY, train)
