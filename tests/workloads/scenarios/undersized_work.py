"""Small batches of a small model: each kernel fills a tenth of the GPU, and nothing else is wrong."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), trainer.compute(30, blocks=13, bytes_in=64 << 10))


SCENARIO = Scenario(Label("busy-not-working", "undersized-work"), train)
