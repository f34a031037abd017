"""A model too large for its GPU: frozen layers stay in pageable host memory and are copied in one by one, forward and backward."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_LAYERS, _LAYER_BYTES = 16, 24 << 20


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        for kernel_ms in (1.5, 3.0):  # forward, backward
            for _ in range(_LAYERS):
                gpu.copy_in(_LAYER_BYTES)
                gpu.launch(kernel_ms)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=1), workers=2), step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train, env={"GPUTOP_CUDA_GBPS": "6"})
