"""Labelled and unlabelled loader at once, four workers per CPU each: all begin each short epoch together, and no batch is done for long."""

from __future__ import annotations

from collections.abc import Iterator

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_BATCH = 8


def train(trainer: Trainer) -> None:
    workers = 4 * cpus()
    data = Images(cpu_ms=5, length=_BATCH * workers)
    labelled, unlabelled = (loader(data, workers, batch=_BATCH) for _ in range(2))

    def pairs() -> Iterator[object]:
        while True:
            yield from zip(labelled, unlabelled, strict=True)

    trainer.fit(pairs(), trainer.compute(130 / cpus()))


SCENARIO = Scenario(Label("input-bound", "worker-oversubscription"), train)
