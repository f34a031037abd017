"""torch.compile meets a new shape: once after some steps the main thread traces, programs of its own compile, then all is well."""

from __future__ import annotations

import subprocess
import sys

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_NEW_SHAPE = 160
_COMPILER = "import time\nwhile time.process_time() < 1.5: pass"


def train(trainer: Trainer) -> None:
    compute = trainer.compute(25)

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps == _NEW_SHAPE:
            numbers(1500)
            compilers = [subprocess.Popen([sys.executable, "-c", _COMPILER]) for _ in range(2)]
            for compiler in compilers:
                compiler.wait()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(Label("idle", "pause"), train)
