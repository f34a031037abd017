"""Two ranks of data-parallel training with a GPU each, and a colleague's evaluation that begins on the second rank's GPU.

The evaluation's long kernels and the rank's take turns, so that this rank comes to the all-reduces of each step some 30 ms late. The
first rank is through with its own work long before and spins in the collective. Its input is ready and its host does nothing wrong: the
job is as fast as its slowest rank.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import collective
from tests.workloads.data import Images
from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SHARED = 1


def train(trainer: Trainer) -> None:
    gpu, group = trainer.gpu, collective.Group(trainer.gpu, trainer.rank)

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(6)
        for _bucket in range(2):
            gpu.launch(6)
            group.all_reduce()
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.2), workers=1), step)


@contextmanager
def colleague(running: Running) -> Iterator[None]:
    """Somebody evaluates a large model on the second GPU."""
    with running.child([sys.executable, "-m", __name__]):
        yield


def _evaluate() -> None:
    gpu = Gpu(_SHARED)
    while True:
        gpu.launch(30)
        gpu.synchronize()
        time.sleep(0.001)


SCENARIO = Scenario(Label("straggler", "straggler-rank"), train, colleague, collective.prepare, ranks=2, devices=2)

if __name__ == "__main__":
    _evaluate()
