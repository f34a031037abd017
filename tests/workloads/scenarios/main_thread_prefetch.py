"""A thread of the script prepares batches ahead, one after the other, and cannot keep up."""

from __future__ import annotations

from tests.workloads import handmade
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.prefetched(cpu_ms=8), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
