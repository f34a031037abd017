"""A worker per CPU, each running all the time: the transforms cost more than the host has."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=20), workers=cpus()), trainer.compute(50 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
