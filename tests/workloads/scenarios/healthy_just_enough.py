"""The workers are busy most of the time, and the GPU all the time: they just keep up."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=6), workers=cpus(), prefetch_factor=4), trainer.compute(85 / cpus()))


SCENARIO = Scenario(HEALTHY, train)
