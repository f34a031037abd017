"""A preprocessing service of three processes feeds the trainer over loopback, also when a second pipeline makes its batches dearer.

Truth: healthy. The service takes 5 ms and later 9 ms of CPU for a batch that the GPU works on for 45 ms; its processes wait for requests
most of the time, the trainer has batches ahead, and the GPU works without a gap. Nobody is a victim or to blame, and only a faster GPU
would make it faster.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import data_service, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_PROCESSES = 3
_CPU_MS, _DEARER_CPU_MS, _STEP_MS = 5.0, 9.0, 45.0


def train(trainer: Trainer) -> None:
    batches = data_service.batches(_PROCESSES, room=6)
    trainer.fit(batches, trainer.compute(_STEP_MS, bytes_in=data_service.BATCH_BYTES))


prepare = partial(data_service.serving, processes=_PROCESSES, cpu_ms=_CPU_MS, slow_cpu_ms=_DEARER_CPU_MS)
SCENARIO = Scenario(HEALTHY, train, native.flag, prepare)
