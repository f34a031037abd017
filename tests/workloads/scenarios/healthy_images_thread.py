"""A thread appends images to an event file on a slow disk; the training hands them over, drops what does not fit, and goes on."""

from __future__ import annotations

from contextlib import suppress
from queue import Full, Queue
from threading import Thread

from tests.workloads import slow_disk
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.scenarios.step_images_fsync import Events, disturb


def train(trainer: Trainer) -> None:
    compute, waiting, events = trainer.compute(50), Queue[int](4), Events()

    def write() -> None:
        while True:
            waiting.get()
            events.add()

    Thread(target=write, name="event-writer", daemon=True).start()

    def step(batch: object) -> None:
        compute(batch)
        with suppress(Full):
            waiting.put_nowait(trainer.steps)

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(HEALTHY, train, disturb, needs=slow_disk.missing)
