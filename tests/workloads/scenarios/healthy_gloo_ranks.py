"""Three ranks sum gradients by gloo, on a network that carries them in a small part of the step."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.workloads import netspace
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_RANKS = 3


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    netspace.join_gloo(trainer.rank, _RANKS)
    gpu, gradients = trainer.gpu, torch.ones(1 << 17)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(60)
        gpu.synchronize()
        dist.all_reduce(gradients)
        gpu.copy_in(4 * len(gradients), pinned=True)

    trainer.fit(iter(lambda: gradients, None), step)


_ENV = {"OMP_NUM_THREADS": "1"}
SCENARIO = Scenario(HEALTHY, train, prepare=netspace.prepare, ranks=_RANKS, devices=_RANKS, needs=netspace.needs, env=_ENV)
