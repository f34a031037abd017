"""A detector assigns its anchors image by image and level by level, and each boolean mask asks the GPU how many there are."""

from __future__ import annotations

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_IMAGES, _LEVELS = 20, 5
_BACKBONE_MS, _BACKWARD_MS = 8.0, 14.5
_OVERLAP_MS, _GATHER_MS = 0.22, 0.16
_DISPATCHED = 15


def _dispatch(boxes: torch.Tensor) -> torch.Tensor:
    """What building the operations of one level costs the interpreter: views, shapes and small results."""
    for _ in range(_DISPATCHED):
        boxes = torch.cat((boxes[:, 2:] - boxes[:, :2], boxes[:, :2].clamp(min=0.0)), dim=1)
    return boxes


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    boxes = torch.rand(12, 4)

    def assign() -> None:
        gpu.launch(_OVERLAP_MS)
        gpu.copy_out(8)
        gpu.synchronize()
        _dispatch(boxes)
        gpu.launch(_GATHER_MS)

    def step(_batch: object) -> None:
        gpu.copy_in(3 << 20, pinned=True)
        for _ in range(4):
            gpu.launch(_BACKBONE_MS / 4)
        for _ in range(_IMAGES * _LEVELS):
            assign()
        for _ in range(6):
            gpu.launch(_BACKWARD_MS / 6)

    trainer.fit(loader(Images(cpu_ms=0.25), workers=2, batch=_IMAGES), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
