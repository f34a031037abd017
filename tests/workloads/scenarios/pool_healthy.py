"""A `multiprocessing.Pool` that keeps up."""

from __future__ import annotations

from tests.workloads import handmade
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(Images(cpu_ms=1.5).__getitem__, workers=2), trainer.compute(50))


SCENARIO = Scenario(HEALTHY, train)
