"""Past its warm-up, rank 0 alone keeps the weights' moving average, on its CPU, after each step; the other two wait in the all-reduce."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import collective
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

RANKS = 3
LAYERS, LAYER_FLOATS = 120, 1 << 20
DECAY = 0.9995
LOSS_EVERY = 3


def train(trainer: Trainer) -> None:
    gpu, group = trainer.gpu, collective.Group(trainer.gpu, trainer.rank)
    averaging = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "averaging"
    layers = [torch.randn(LAYER_FLOATS) for _ in range(LAYERS if trainer.rank == 0 else 0)]
    average = [layer.clone() for layer in layers]

    def step(_batch: object) -> None:
        gpu.copy_in(3 << 20, pinned=True)
        gpu.launch(45)
        for _bucket in range(3):
            gpu.launch(30)
            group.all_reduce(1)
        gpu.launch(5)
        if trainer.rank == 0 and averaging.exists():
            gpu.copy_out(LAYERS * LAYER_FLOATS * 4)
            for mean, layer in zip(average, layers, strict=True):
                mean.lerp_(layer, 1 - DECAY)
        if trainer.steps % LOSS_EVERY == 0:
            gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1, batch=6), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "averaging").touch()
    yield


SCENARIO = Scenario(
    Label("straggler", "straggler-rank"),
    train,
    disturb,
    collective.prepare,
    ranks=RANKS,
    devices=RANKS,
    env={"OMP_NUM_THREADS": "1"},
)
