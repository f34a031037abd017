"""The weights' moving average is kept on the CPU by the main thread, but while the GPU already works on the step: nobody waits."""

from __future__ import annotations

import time

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_WEIGHTS, _AVERAGE_CPU_S = 1 << 20, 0.025


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    gpu, weights, average = trainer.gpu, torch.randn(_WEIGHTS), torch.zeros(_WEIGHTS)

    def step(_batch: object) -> None:
        gpu.copy_out(_WEIGHTS * 4)
        gpu.copy_in(1 << 20, pinned=True)
        for _ in range(5):
            gpu.launch(10)
        until = time.thread_time() + _AVERAGE_CPU_S
        while time.thread_time() < until:
            average.lerp_(weights, 1e-4)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.4), workers=1), step)


SCENARIO = Scenario(HEALTHY, train)
