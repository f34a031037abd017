"""No workers: the script decodes each batch in a pool of threads and waits for it before the GPU gets anything."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    compute = trainer.compute(25)
    with ThreadPoolExecutor(cpus()) as pool:

        def step(_batch: object) -> None:
            compute(list(pool.map(decode, [6.0] * 8)))

        trainer.fit(iter(int, 1), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
