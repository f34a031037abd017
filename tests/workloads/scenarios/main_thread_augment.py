"""Workers far ahead, but the script mixes and pads each batch itself before it goes to the GPU."""

from __future__ import annotations

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    compute = trainer.compute(25)

    def step(batch: object) -> None:
        decode(45)
        compute(batch)

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
