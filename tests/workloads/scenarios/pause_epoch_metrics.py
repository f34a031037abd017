"""Short epochs, and after each of them the main thread works out the epoch's metrics in pure Python: a third of the GPU's time."""

from __future__ import annotations

from contextlib import suppress

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Over, Trainer, loader
from tests.workloads.scenario import Label, Scenario

_BATCH, _BATCHES, _STEP_MS = 8, 100, 30
_METRICS_MS = 1500


def train(trainer: Trainer) -> None:
    batches, step = loader(Images(cpu_ms=0.5, length=_BATCH * _BATCHES), workers=2, batch=_BATCH), trainer.compute(_STEP_MS)
    with suppress(Over):
        while True:
            trainer.epoch(batches, step)
            numbers(_METRICS_MS)


SCENARIO = Scenario(Label("idle", "pause"), train)
