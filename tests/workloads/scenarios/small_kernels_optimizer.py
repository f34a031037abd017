"""An unfused Adam: after each proper forward and backward, a dozen tiny kernels for every one of 400 parameters."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_PARAMETERS, _OPERATIONS = 400, 12


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for _ in range(8):
            gpu.launch(1.5)
        for _ in range(_PARAMETERS):
            for _ in range(_OPERATIONS):
                gpu.launch(0.006, blocks=4)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
