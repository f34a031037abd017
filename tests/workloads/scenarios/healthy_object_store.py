"""Ray-like streaming of a data set: three map workers of a raylet are ahead of the GPU, also with the augmentation that comes later.

Truth: healthy. The workers take 5 ms and later 10 ms for an object, three share what the GPU takes 40 ms for; they sleep most of the time
because their slots in the store are full. Nobody is a victim or to blame, and only a faster GPU would make it faster.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.workloads import native, plasma
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_WORKERS = 3
_CPU_MS, _AUGMENTED_CPU_MS, _STEP_MS = 5.0, 10.0, 40.0


def train(trainer: Trainer) -> None:
    batches = plasma.objects(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]))
    trainer.fit(batches, trainer.compute(_STEP_MS, bytes_in=plasma.OBJECT_BYTES))


prepare = partial(plasma.serving, workers=_WORKERS, cpu_ms=_CPU_MS, slow_cpu_ms=_AUGMENTED_CPU_MS)
SCENARIO = Scenario(HEALTHY, train, native.flag, prepare)
