"""From some moment on the metrics of a validation set are worked out on the CPU after each few seconds of training."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.pause import disturb

_TRAIN_S, _EVALUATE_MS = 4.0, 1500


def train(trainer: Trainer) -> None:
    compute, flag = trainer.compute(30), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "save"
    evaluated = [0.0]

    def step(batch: object) -> None:
        compute(batch)
        if flag.exists() and time.monotonic() - evaluated[0] > _TRAIN_S:
            decode(_EVALUATE_MS)
            evaluated[0] = time.monotonic()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(Label("idle", "pause"), train, disturb)
