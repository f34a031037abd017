"""Ray-like actors, one per CPU and children of their daemon, prepare batches too slowly; the trainer waits on UNIX sockets."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from tests.workloads import actors
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(actors.batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])), trainer.compute(16))


def prepare(running: Running) -> AbstractContextManager[None]:
    return actors.serving(running, actors=cpus(), cpu_ms=4 * cpus())


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, prepare=prepare)
