"""Huge batches from pageable memory: the GPU waits for the bus."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), trainer.compute(25, bytes_in=300 << 20))


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train, env={"GPUTOP_CUDA_GBPS": "6"})
