"""Healthy, with spawned workers and a trainer that spins while it waits for its GPU, as CUDA does by default."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.6), workers=2, start="spawn"), trainer.compute(50))


SCENARIO = Scenario(HEALTHY, train, env={"GPUTOP_CUDA_SCHEDULE": "spin"})
