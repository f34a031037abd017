"""After each step a callback asks a program for the GPU's memory, as many loggers call nvidia-smi, and waits for its answer."""

from __future__ import annotations

import subprocess
import sys

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_STEP_MS = 60
_ASK = [sys.executable, "-I", "-S", "-c", "import time\nwhile time.process_time() < 0.04: pass\nprint(81920)"]


def train(trainer: Trainer) -> None:
    compute = trainer.compute(_STEP_MS)

    def step(batch: object) -> None:
        compute(batch)
        subprocess.run(_ASK, capture_output=True, check=True)

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
