"""In quick steps the script hands half of its work to a thread and waits for it, as a backward pass does; neither needs the GIL long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    compute = trainer.compute(8, kernels=2)
    with ThreadPoolExecutor(1) as device:

        def step(batch: object) -> None:
            decode(4)
            device.submit(decode, 10).result()
            compute(batch)

        trainer.fit(loader(Images(cpu_ms=0.1), workers=1), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
