"""Rank 1's share of the data costs more to decode than its worker can do in a step; rank 0 waits for it in the all-reduce."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.straggler_rank import RANKS, Ring, disturb, prepare


class Uneven(Images):
    """Images that are large in rank 1's part."""

    def __init__(self, rank: int) -> None:
        super().__init__(0.3)
        self.rank, self.flag = rank, Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "straggle"

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(9.0 if self.rank == 1 and self.flag.exists() else self.cpu_ms)


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    ring, gpu, rank = Ring(folder / "ring"), trainer.gpu, trainer.rank

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        gpu.launch(30)
        ring.arrived[rank] = trainer.steps + 1
        gpu.all_reduce(ring.peer(rank), trainer.steps + 1)
        gpu.synchronize()

    trainer.fit(loader(Uneven(rank), workers=1), step)


SCENARIO = Scenario(Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, prepare, ranks=RANKS, devices=RANKS)
