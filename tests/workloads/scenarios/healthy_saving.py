"""Checkpoints are written by a thread beside the training, which goes on."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.scenarios.pause import save


def train(trainer: Trainer) -> None:
    threading.Thread(target=_save, name="checkpoint", daemon=True).start()
    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), trainer.compute(80))


def _save() -> None:
    weights, path = torch.zeros(2 << 20), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "checkpoint.pt"
    while True:
        time.sleep(3)
        save(weights, path)


SCENARIO = Scenario(HEALTHY, train)
