"""Each worker caches what it decodes: a third of the container's memory in the end, and less and less of it in each short epoch."""

from __future__ import annotations

import torch

from tests.workloads import tight_memory
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.scenarios import host_memory_kept_samples as kept

_SAMPLES, _KEPT_BYTES = 2400, 128 << 10  # 300 MiB in each of two workers; an epoch takes 9 s, and shows a worker half of what it lacks


class Cached(Images):
    """Images that are decoded once by each worker."""

    def __init__(self, cpu_ms: float) -> None:
        super().__init__(cpu_ms, _SAMPLES)
        self.cache: dict[int, bytearray] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = bytearray(b"x" * _KEPT_BYTES)
        return super().__getitem__(index)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Cached(0.3), workers=2, shuffle=True), trainer.compute(30))


SCENARIO = Scenario(HEALTHY, train, kept.limit, kept.prepare, needs=tight_memory.missing, least_s=42.0)
