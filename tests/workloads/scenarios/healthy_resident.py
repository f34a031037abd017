"""A speedrun: the whole data set lies in the GPU's memory, no loader, epochs of half a second, and launches that run far ahead."""

from __future__ import annotations

from contextlib import suppress

from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_IMAGES, _BATCH, _TEST_BATCHES = 50_000, 512, 10
_LAYERS, _LAYER_MS = 8, 0.2
_ALL_BYTES = _IMAGES * 3 * 32 * 32


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    gpu.copy_in(_ALL_BYTES)

    def epoch() -> None:
        """Order and augmentation are made on the GPU too; only the accuracy comes back."""
        gpu.launch(1.5)
        for _ in range(_IMAGES // _BATCH):
            forward()
            for _ in range(_LAYERS):
                gpu.launch(2 * _LAYER_MS)
            gpu.launch(0.3)  # the fused optimizer
            trainer.tick()
        for _ in range(_TEST_BATCHES):
            forward()
        gpu.copy_out()

    def forward() -> None:
        for _ in range(_LAYERS):
            gpu.launch(_LAYER_MS)

    with suppress(Over):
        while True:
            epoch()


SCENARIO = Scenario(HEALTHY, train)
