"""A trainer is fed by a preprocessing service on the same host, one process of it, until the pipeline behind the service gets a new stage.

Truth: the GPU starves (input-bound) because `data_service`, one process at a full core, needs nearly three times as long for a batch as the
GPU (slow-transform); the victim is the trainer, which waits in recv(2), and there is nothing wrong with the network. More processes of the
service, or a cheaper stage, would fix it.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import data_service, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CPU_MS, _SLOW_CPU_MS, _STEP_MS = 8.0, 110.0, 40.0


def train(trainer: Trainer) -> None:
    trainer.fit(data_service.batches(1), trainer.compute(_STEP_MS, bytes_in=data_service.BATCH_BYTES))


prepare = partial(data_service.serving, processes=1, cpu_ms=_CPU_MS, slow_cpu_ms=_SLOW_CPU_MS)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
