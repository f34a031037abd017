"""One process with a model on two GPUs that work at the same time (`nn.DataParallel`), and rest while the main thread collates.

Each works 24 ms of a step. Their means over a tenth of a second are the same as those of GPUs that take turns.
"""

from __future__ import annotations

import itertools

from tests.workloads.data import numbers
from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_GPU_MS, _HOST_MS = 24, 36


def train(trainer: Trainer) -> None:
    replicas = [Gpu(device, memory_bytes=20 << 30) for device in range(2)]

    def step(_batch: object) -> None:
        numbers(_HOST_MS)
        for device, gpu in enumerate(replicas):
            gpu.select(device)
            gpu.launch(_GPU_MS)
        for device, gpu in enumerate(replicas):
            gpu.select(device)
            gpu.synchronize()

    trainer.fit(itertools.repeat(None), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, devices=2)
