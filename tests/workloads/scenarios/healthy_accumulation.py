"""Gradients of four batches before each wait for the GPU, and an evaluation now and then that keeps it busy too."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_ACCUMULATED, _EVALUATE_AFTER, _EVALUATED = 4, 120, 40


def train(trainer: Trainer) -> None:
    gpu, whole = trainer.gpu, trainer.compute(20, pinned=True)

    def step(batch: object) -> None:
        if trainer.steps % _EVALUATE_AFTER >= _EVALUATE_AFTER - _EVALUATED:
            whole(batch)
            return
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(22)
        if trainer.steps % _ACCUMULATED == 0:
            gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.4), workers=3), step)


SCENARIO = Scenario(HEALTHY, train)
