"""Optimizer states do not fit on the GPU: bucket by bucket gradients come to the host, Adam runs there, and weights go back."""

from __future__ import annotations

import time

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus
from tests.workloads.scenarios.offload_optimizer import adam

_BUCKETS, _BUCKET = 4, 10 << 20
_UPDATE_S = 0.02


def train(trainer: Trainer) -> None:
    torch.set_num_threads(cpus())
    gpu, compute, optimizer = trainer.gpu, trainer.compute(30), adam()

    def step(batch: object) -> None:
        compute(batch)
        for _ in range(_BUCKETS):
            gpu.copy_out(_BUCKET)
            until = time.monotonic() + _UPDATE_S  # as large a bucket as this host updates in that time
            while time.monotonic() < until:
                optimizer.step()
            gpu.copy_in(_BUCKET)

    trainer.fit(loader(Images(cpu_ms=1), workers=2), step)


SCENARIO = Scenario(Label("wait-heavy", "host-optimizer"), train)
