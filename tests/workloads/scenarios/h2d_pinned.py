"""Huge batches from pinned memory, copied asynchronously: the waiting shows in synchronize, the reason is still the bus."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), trainer.compute(25, bytes_in=700 << 20, pinned=True))


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train)
