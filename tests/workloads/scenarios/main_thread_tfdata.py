"""A tf.data-like pipeline in the trainer: native threads, one per CPU, inflate the records ahead, and all CPUs are not enough."""

from __future__ import annotations

from tests.workloads import tfdata
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(tfdata.batches(threads=cpus(), cpu_ms=4 * cpus()), trainer.compute(16))


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, prepare=tfdata.records)
