"""Each sample is decoded by a program whose output is captured: the worker polls its pipes, as if for the network."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from tests.stubs.build import build
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


class Films(Images):
    """Samples that a program takes 15 ms for."""

    def __getitem__(self, index: int) -> torch.Tensor:
        program = build(Path(__file__).parents[1] / "hog.c", "ffmpeg", program=True)
        subprocess.run([str(program), "0.015", "1"], check=False, capture_output=True)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Films(0.2), workers=cpus()), trainer.compute(40 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
