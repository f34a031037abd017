"""Quick steps, cheap samples: the GPU is busy nearly always."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.4), workers=2), trainer.compute(20))


SCENARIO = Scenario(HEALTHY, train)
