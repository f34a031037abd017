"""The same with forked workers, each of which opens its shards' index before the first batch."""

from __future__ import annotations

from tests.workloads.data import Images, numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def open_index(_worker: int) -> None:
    """Half a second of parsing."""
    numbers(500)


def train(trainer: Trainer) -> None:
    epoch = loader(Images(cpu_ms=0.5, length=8 * 30), workers=2, persistent_workers=False, worker_init_fn=open_index)
    trainer.fit(epoch, trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
