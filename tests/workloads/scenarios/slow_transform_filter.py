"""Each worker keeps a program beside it, which gets a sample through one pipe and gives it back through another."""

from __future__ import annotations

import subprocess
import sys

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_FILTER = """
import sys, time
while line := sys.stdin.buffer.readline():
    until = time.thread_time() + 0.014
    while time.thread_time() < until: pass
    sys.stdout.buffer.write(line); sys.stdout.flush()
"""


class Filtered(Images):
    """Samples that the program takes 14 ms for."""

    program: subprocess.Popen[bytes] | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.program is None:
            self.program = subprocess.Popen([sys.executable, "-c", _FILTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(b"sample\n")
        self.program.stdin.flush()
        self.program.stdout.readline()
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Filtered(0.2), workers=cpus()), trainer.compute(40 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
