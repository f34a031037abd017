"""A native solver with twice as many threads of work as there are CPUs begins beside a training whose workers just keep up.

Truth: the GPU starves (input-bound) because the workers wait for a CPU (cpu-contention) behind `fem-solver`, which is to blame.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_STEP_MS, _BATCH = 40.0, 8
_SOLVER = "fem-solver"


def train(trainer: Trainer) -> None:
    images = Images(cpu_ms=0.7 * cpus() * _STEP_MS / _BATCH)
    trainer.fit(loader(images, cpus(), batch=_BATCH), trainer.compute(_STEP_MS))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with hogs(running, {_SOLVER: 2 * cpus()}):
        yield


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_SOLVER})), train, disturb)
