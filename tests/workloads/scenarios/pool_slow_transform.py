"""A `multiprocessing.Pool` for a loader, which cannot keep up."""

from __future__ import annotations

from tests.workloads import handmade
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.pooled(Images(cpu_ms=16).__getitem__, workers=cpus()), trainer.compute(50 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
