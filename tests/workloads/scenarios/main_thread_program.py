"""No workers: for each batch the script runs a program and captures what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.stubs.build import build
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    program, compute = build(Path(__file__).parents[1] / "hog.c", "ffmpeg", program=True), trainer.compute(25)

    def step(_batch: object) -> None:
        subprocess.run([str(program), "0.05", "1"], check=False, capture_output=True)
        compute(_batch)

    trainer.fit(iter(int, 1), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
