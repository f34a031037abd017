"""A model behind a front with two threads that prepare its requests, until these get longer.

Truth: the GPU starves (input-bound) because the two threads of `front`, each at a full core, need twice as long for a piece as the GPU
(slow-transform); the victim is the process on the GPU, whose thread waits at the front's UNIX socket.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 25.0)


prepare = partial(front.serving, shape="threads", cpu_ms=4.0, slow_cpu_ms=120.0)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
