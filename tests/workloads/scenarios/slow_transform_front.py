"""A model behind a front that prepares each request itself, until the requests get longer.

Truth: the GPU starves (input-bound) because the one `front`, at a full core, needs three times as long for a piece as the GPU
(slow-transform); the victim is the process on the GPU, which waits at the front's UNIX socket. No CPU helps: the front is one thread.
"""

from __future__ import annotations

from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    front.engine(trainer, 30.0)


prepare = partial(front.serving, shape="alone", cpu_ms=4.0, slow_cpu_ms=90.0)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
