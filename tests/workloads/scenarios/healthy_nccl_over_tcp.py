"""Two ranks whose NCCL exchanges a little by TCP, for a variable forbids other ways: the GPU waits for none of it, so nothing is wrong."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.workloads import netspace
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_RANKS = 2


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    library = netspace.map_nccl()
    netspace.join_gloo(trainer.rank, _RANKS)
    gpu, gradients = trainer.gpu, torch.ones(1 << 14)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(60)
        dist.all_reduce(gradients)
        gpu.synchronize()

    with library:
        trainer.fit(iter(lambda: gradients, None), step)


SCENARIO = Scenario(
    HEALTHY, train, prepare=netspace.prepare, ranks=_RANKS, devices=_RANKS, needs=netspace.needs,
    env={"OMP_NUM_THREADS": "1", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"},
)  # fmt: skip
