"""One worker, busy all the time, beside a CPU that idles."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=1), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train)
