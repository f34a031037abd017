"""Post-hoc EMA: after every short epoch the copies of all decays are validated on the CPU by a thread pool, and the loop waits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import torch
from torch import nn

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_EPOCH_STEPS, _EMA_EVERY = 32, 8
_DECAYS = (0.9, 0.99, 0.999)
_VALIDATION_BATCHES = 12


def network() -> nn.Module:
    """A small denoiser."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 3, 3, padding=1)
    )


@torch.inference_mode()
def validate(average: nn.Module, images: torch.Tensor) -> float:
    """How well it takes noise away."""
    total = 0.0
    for clean in images:
        noise = torch.randn_like(clean)
        total += float((average(clean + noise) - noise).square().mean())
    return total


def train(trainer: Trainer) -> None:
    compute, model = trainer.compute(40), network()
    averages = [deepcopy(model) for _ in _DECAYS]
    held_out = torch.rand(_VALIDATION_BATCHES, 32, 3, 48, 48)
    pool = ThreadPoolExecutor(len(_DECAYS), "validate")
    best: list[int] = []

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _EMA_EVERY == 0:
            with torch.no_grad():
                for decay, average in zip(_DECAYS, averages, strict=True):
                    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        if trainer.steps % _EPOCH_STEPS == _EPOCH_STEPS - 1:
            scores = list(pool.map(validate, averages, [held_out] * len(averages)))
            best.append(scores.index(min(scores)))

    trainer.fit(loader(Images(cpu_ms=0.8), workers=2), step)
    pool.shutdown()


SCENARIO = Scenario(Label("idle", "pause"), train, env={"OMP_NUM_THREADS": "1"})
