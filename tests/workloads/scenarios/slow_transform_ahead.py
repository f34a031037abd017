"""Transforms that cost too much, in a loop that asks for its loss only every tenth step."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=15), workers=cpus()), trainer.compute_ahead(50 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
