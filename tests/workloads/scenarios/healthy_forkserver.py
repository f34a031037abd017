"""Healthy, with workers from a forkserver."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.8), workers=2, start="forkserver"), trainer.compute(60))


SCENARIO = Scenario(HEALTHY, train)
