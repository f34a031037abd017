"""Fine-tuning on a former mining rig: the card sits in a PCIe x1 riser, and each batch takes as long to get there as to train on."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from tests.workloads import nvml_control
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_GEN3_X1_GB_PER_S = "0.8"
_BATCH = 32
_BLOCKS_MS = (6.5, 5.5, 10.0)
_LOG_EVERY = 6


class CachedCrops(Dataset[tuple[torch.Tensor, int]]):
    """Normalized crops kept in memory; stacking them is all that is left to do for the workers."""

    def __init__(self) -> None:
        self.crops = torch.rand(24, 3, 224, 224)

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.crops[index % len(self.crops)], index % 37


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(batch: object) -> None:
        for part in batch:  # type: ignore[attr-defined]
            gpu.copy_in(part.nbytes)
        for length_ms in _BLOCKS_MS:
            gpu.launch(length_ms)
        if trainer.steps % _LOG_EVERY == 0:
            gpu.copy_out(4)

    trainer.fit(loader(CachedCrops(), workers=2, start="forkserver", batch=_BATCH), step)


SCENARIO = Scenario(
    Label("transfer-bound", "pcie-degraded"),
    train,
    prepare=nvml_control.from_the_start("pcie_gen 3\npcie_width 1\n"),
    env={"GPUTOP_CUDA_GBPS": _GEN3_X1_GB_PER_S},
)
