"""Short epochs whose workers are forked anew, at once, and gather rows flat out from then on: to keep them would gain little."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    epoch = loader(Images(cpu_ms=10, length=8 * 20 * cpus()), workers=cpus(), persistent_workers=False)
    trainer.fit(epoch, trainer.compute(16 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
