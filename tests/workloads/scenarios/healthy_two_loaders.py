"""Two loaders with workers of their own, as for training and validation: the second one's wait for their turn all along."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    validation = iter(loader(Images(cpu_ms=1), workers=3))
    next(validation)
    trainer.fit(loader(Images(cpu_ms=1.5), workers=2), trainer.compute(40))


SCENARIO = Scenario(HEALTHY, train)
