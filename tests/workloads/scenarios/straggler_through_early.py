"""Two ranks in step; rank 1 has used up its shorter part of the data and waits elsewhere, rank 0 spins in an all-reduce for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import collective
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

RANKS = 2


def train(trainer: Trainer) -> None:
    group, through = collective.Group(trainer.gpu, trainer.rank), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "through"

    def step(_batch: object) -> None:
        while trainer.rank == 1 and through.exists():
            time.sleep(1000)
        trainer.gpu.launch(25)
        group.all_reduce()
        trainer.gpu.synchronize()

    trainer.fit(range(1 << 30), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "through").touch()
    running.blame(running.trainer_pids[1], "train.py")
    yield


SCENARIO = Scenario(
    Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, collective.prepare, ranks=RANKS, devices=RANKS
)
