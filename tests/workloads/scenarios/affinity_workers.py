"""Workers that a library's start-up code pins, all of them, to the first CPU; the trainer is free."""

from __future__ import annotations

import os

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


def pin(_worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=6), workers=2 * cpus(), worker_init_fn=pin), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "affinity"), train)
