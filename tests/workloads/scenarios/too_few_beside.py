"""Two trainings on one host, each with a GPU of its own: one is well, the other's transforms are too slow for its only worker."""

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

_WELL = Path(__file__).parents[1] / "plain_train.py"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=1), trainer.compute(25))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    command = [sys.executable, str(_WELL), "--seconds", str(running.seconds + 60), "--cpu-ms", "0.4", "--gpu-ms", "40"]
    env = {**running.env, "CUDA_VISIBLE_DEVICES": "1"}
    well = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(well.pid, 9)
        well.wait()


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train, prepare=prepare, devices=2)
