"""Segmentation: masks as large as the pictures come back, and the main thread cleans and scores each of them before the next batch."""

from __future__ import annotations

import time

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_PICTURES = 48 << 20  # bytes of a batch, and of its masks
_SCORE_S = 0.06


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    compute = trainer.compute(35, bytes_in=_PICTURES, pinned=True)

    def step(batch: object) -> None:
        compute(batch)
        gpu.copy_out(_PICTURES)
        until = time.thread_time() + _SCORE_S
        while time.thread_time() < until:
            sum(range(2000))

    trainer.fit(loader(Images(cpu_ms=1), workers=2), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
