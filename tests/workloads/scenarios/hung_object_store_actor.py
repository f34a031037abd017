"""Ray-like streaming of a data set in order: one of three actors asks a metadata service that accepted its connection and never answers.

Truth: the GPU starves for good (input-bound) because one `ray::MapWorker` waits in recv(2) for ever (hung-worker); the others have filled
their slots and wait for their turn, the raylet waits for the object, and the victim, the trainer, for the raylet. Ending that actor, which
the raylet would replace, or a timeout on its request would fix it.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.workloads import native, plasma
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_ACTORS = 3
_CPU_MS, _STEP_MS = 12.0, 35.0


def train(trainer: Trainer) -> None:
    batches = plasma.objects(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]))
    trainer.fit(batches, trainer.compute(_STEP_MS, bytes_in=plasma.OBJECT_BYTES))


disturb = partial(native.flag, name="hung")
prepare = partial(plasma.serving, workers=_ACTORS, cpu_ms=_CPU_MS)
SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
