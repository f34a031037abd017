"""The same among twenty workers, which are read less often than a few are."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.hung_worker import disturb


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=20), trainer.compute(40))


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
