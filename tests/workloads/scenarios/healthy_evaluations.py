"""Every 50 steps the model is evaluated for 15 batches of another loader, whose worker persists and has its first batches ready.

In an evaluation the batches are quicker and the predictions go home, a megabyte for each batch; the accuracy is summed up in a
millisecond. It looks like a pause, for no training step happens, but the GPU is at work in it as it is before and after. Nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import HEALTHY, Scenario

_EVERY, _BATCHES = 50, 15


def train(trainer: Trainer) -> None:
    gpu, usual = trainer.gpu, trainer.compute_ahead(30, every=5)
    held_out = iter(loader(Images(cpu_ms=0.5), workers=1, prefetch_factor=8))

    def step(batch: object) -> None:
        usual(batch)
        if trainer.steps % _EVERY == _EVERY - 1:
            _evaluate(held_out)

    def _evaluate(batches: Iterator[object]) -> None:
        right = 0
        for _ in range(_BATCHES):
            next(batches)
            gpu.copy_in(1 << 20, pinned=True)
            gpu.launch(18)
            gpu.launch(8)
            gpu.copy_out(1 << 20)
            right += sum(prediction % 10 == 7 for prediction in range(1000))

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


SCENARIO = Scenario(HEALTHY, train)
