"""The whole job is pinned to one CPU while the others idle."""

from __future__ import annotations

import os

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    trainer.fit(loader(Images(cpu_ms=8), workers=4), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "affinity"), train)
