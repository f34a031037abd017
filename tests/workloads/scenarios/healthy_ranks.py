"""Three ranks in lock step: sentences differ in length, so now one rank is a little later in the all-reduce and now another."""

from __future__ import annotations

import random

from tests.workloads import collective
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_RANKS, _BUCKETS = 3, 4


def train(trainer: Trainer) -> None:
    gpu, group = trainer.gpu, collective.Group(trainer.gpu, trainer.rank)

    def step(_batch: object) -> None:
        length = random.uniform(0.98, 1.02)
        gpu.copy_in(1 << 20)
        gpu.launch(25 * length)
        for _ in range(_BUCKETS):
            gpu.launch(12 * length)
            group.all_reduce(0.3)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.8), workers=1), step)


SCENARIO = Scenario(HEALTHY, train, prepare=collective.prepare, ranks=_RANKS, devices=_RANKS)
