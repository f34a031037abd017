"""Four workers per CPU: they mostly wait for one another."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=10), workers=4 * cpus()), trainer.compute(40 / cpus()))


SCENARIO = Scenario(Label("input-bound", "worker-oversubscription"), train)
