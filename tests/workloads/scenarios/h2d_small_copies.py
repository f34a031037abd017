"""A recommender's batch is 1500 small tensors, one or two per table, each moved by a `.to("cuda")` of its own from pageable memory."""

from __future__ import annotations

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_TENSORS, _BYTES = 1500, 24 << 10
_SMALL_GBPS = "1.5"  # a copy this small costs mostly its own start, so the bus gives a tenth of what it could


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        for _ in range(_TENSORS):
            gpu.copy_in(_BYTES)
        for _ in range(4):
            gpu.launch(4)
        gpu.synchronize()

    trainer.fit(loader(Images(cpu_ms=0.3), workers=2), step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train, env={"GPUTOP_CUDA_GBPS": _SMALL_GBPS})
