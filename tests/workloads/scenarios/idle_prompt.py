"""`breakpoint()` in the loop: the trainer waits for what its user types, its workers have batches ready."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    prompt, step = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "prompt", trainer.compute(30)
    user = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdout=subprocess.PIPE)
    assert user.stdout is not None
    os.dup2(user.stdout.fileno(), 0)

    def pausing(batch: object) -> None:
        if prompt.exists():
            os.read(0, 1)
        step(batch)

    try:
        trainer.fit(loader(Images(cpu_ms=1), workers=2), pausing)
    finally:
        user.kill()


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "prompt").touch()
    yield


SCENARIO = Scenario(Label("idle", "pause"), train, disturb)
