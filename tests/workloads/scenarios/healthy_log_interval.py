"""A loop that asks for its loss only every tenth step, as good ones do: in between it runs ahead of the GPU."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute_ahead(25))


SCENARIO = Scenario(HEALTHY, train)
