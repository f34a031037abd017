"""Rank 1's kernels take longer (longer sequences, a slower GPU); rank 0's GPU is done and spins in the all-reduce."""

from __future__ import annotations

import os
from pathlib import Path

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.straggler_rank import RANKS, Ring, disturb, prepare


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    ring, gpu, rank = Ring(folder / "ring"), trainer.gpu, trainer.rank

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        gpu.launch(75 if rank == 1 and (folder / "straggle").exists() else 30)
        gpu.synchronize()
        ring.arrived[rank] = trainer.steps + 1
        gpu.all_reduce(ring.peer(rank), trainer.steps + 1)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


SCENARIO = Scenario(Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, prepare, ranks=RANKS, devices=RANKS)
