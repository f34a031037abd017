"""A model cut in two (``device_map="auto"``): its halves stand on two GPUs, which work in turn; the host does nothing."""

from __future__ import annotations

import itertools

from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


class Half:
    """A part of the model on a GPU of its own."""

    def __init__(self, device: int) -> None:
        self._device, self._gpu = device, Gpu(device, memory_bytes=20 << 30)

    def compute(self, length_ms: float) -> None:
        self._gpu.select(self._device)
        self._gpu.launch(length_ms)
        self._gpu.synchronize()


def train(trainer: Trainer) -> None:
    first, second = Half(0), Half(1)

    def step(_batch: object) -> None:
        for half, length_ms in ((first, 15), (second, 20), (second, 40), (first, 30)):
            half.compute(length_ms)

    trainer.fit(itertools.repeat(None), step)


SCENARIO = Scenario(Label("wait-heavy", "undersized-work"), train, devices=2)
