"""A tf.data-like pipeline in the trainer, whose native threads take half of all CPUs and stay ahead of the GPU."""

from __future__ import annotations

from tests.workloads import tfdata
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(tfdata.batches(threads=cpus(), cpu_ms=2 * cpus()), trainer.compute(32))


SCENARIO = Scenario(HEALTHY, train, prepare=tfdata.records)
