"""After a loss that became NaN somebody added `if torch.isnan(p.grad).any(): raise` for each parameter (and `isinf`), and left it in.

Every check is two small kernels and then a read of one byte, for which the main thread waits: some hundreds a step. Between the
answer and the next launch the GPU has nothing to do. The loader is ahead, the forward and backward kernels are large, and
without the checks (or with one for all gradients) the GPU would be busy nearly always: the synchronizations are the cause.
"""

from __future__ import annotations

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_PARAMETERS = [f"layer{block}.{index}.{kind}" for block in range(24) for index in range(9) for kind in ("weight", "bias")]


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    gradient, norms = torch.ones(64), dict[str, float]()

    def checked(name: str) -> None:
        for is_bad in (torch.isnan, torch.isinf):
            gpu.launch(0.0015, 16)
            gpu.launch(0.0015, 8)
            gpu.copy_out(1)
            if is_bad(gradient).any():
                raise FloatingPointError(name)
        norms[f"grad/{name}"] = gradient.norm().item()

    def step(_batch: object) -> None:
        gpu.copy_in(2 << 20, pinned=True)
        for _ in range(4):
            gpu.launch(1.0)
        for name in _PARAMETERS:
            checked(name)
        gpu.launch(1.0)

    trainer.fit(loader(Images(cpu_ms=0.2), workers=2, start="forkserver"), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
