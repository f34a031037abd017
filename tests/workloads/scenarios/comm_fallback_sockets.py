"""Two ranks of one host whose NCCL may use neither NVLink nor shared memory: by TCP they sum 2 MB of gradients in each step; then the
network carries 100 Mbit/s."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from tests.workloads import netspace
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS = 2


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    library = netspace.map_nccl()
    netspace.join_gloo(trainer.rank, _RANKS)
    gpu, gradients = trainer.gpu, torch.ones(1 << 19)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(40)
        gpu.synchronize()
        gpu.copy_out(4 * len(gradients))
        dist.all_reduce(gradients)
        gpu.copy_in(4 * len(gradients), pinned=True)
        gpu.launch(3)

    with library:
        trainer.fit(iter(lambda: gradients, None), step)


def disturb(running: Running) -> AbstractContextManager[None]:
    return netspace.slowed(running, 100)


SCENARIO = Scenario(
    Label("comm-bound", "comm-fallback"), train, disturb, netspace.prepare, ranks=_RANKS, devices=_RANKS, needs=netspace.needs,
    env={"OMP_NUM_THREADS": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
)  # fmt: skip
