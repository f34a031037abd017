"""Ray-like streaming of a data set: one map worker of the raylet fills the object store, fast enough until an augmentation is added.

Truth: the GPU starves (input-bound) because the only `ray::MapWorker` works all the time and needs three times as long for an object as the
GPU, while other CPUs idle (too-few-workers); the victim is the trainer, which waits for the raylet, and the raylet only waits as well. A
larger `concurrency` of the map stage would fix it.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.workloads import native, plasma
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_CPU_MS, _SLOW_CPU_MS, _STEP_MS = 10.0, 110.0, 40.0


def train(trainer: Trainer) -> None:
    batches = plasma.objects(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]))
    trainer.fit(batches, trainer.compute(_STEP_MS, bytes_in=plasma.OBJECT_BYTES))


prepare = partial(plasma.serving, workers=1, cpu_ms=_CPU_MS, slow_cpu_ms=_SLOW_CPU_MS)
SCENARIO = Scenario(
    Label("input-bound", "too-few-workers"), train, native.flag, prepare, needs=lambda: "" if cpus() > 1 else "one CPU is all there is"
)
