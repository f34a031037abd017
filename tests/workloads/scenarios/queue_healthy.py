"""Producers of a home-made loader that are ahead: they wait because the queue is full, which is as it should be."""

from __future__ import annotations

from tests.workloads import handmade
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.queued(Images(cpu_ms=1).__getitem__, workers=2), trainer.compute(60))


SCENARIO = Scenario(HEALTHY, train)
