"""A GAN is scored each few steps: features of its samples come back, and the trainer takes their Fréchet distance on the CPU."""

from __future__ import annotations

import ctypes

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

SCORE_EVERY = 5
SAMPLES, FEATURES = 3072, 1280
STEP_MS = (70, 90, 60, 100)


def distance(real: torch.Tensor, made: torch.Tensor) -> float:
    """Of the two normal distributions which have the features' means and covariances."""
    one, other = torch.cov(real.T), torch.cov(made.T)
    mixed = torch.linalg.eigvals(one @ other).real.clamp(min=0).sqrt().sum()
    return float((real.mean(0) - made.mean(0)).square().sum() + one.trace() + other.trace() - 2 * mixed)


def train(trainer: Trainer) -> None:
    gpu, cuda = trainer.gpu, ctypes.CDLL("libcudart.so.12")
    real = torch.randn(SAMPLES, FEATURES)

    def score() -> float:
        for _ in range(3):
            gpu.launch(20)
        gpu.copy_out(SAMPLES * FEATURES * 4)
        cuda.cudaDeviceSynchronize()
        return distance(real, torch.randn(SAMPLES, FEATURES))

    def step(_batch: object) -> None:
        gpu.copy_in(5 << 20)
        for length_ms in STEP_MS:
            gpu.launch(length_ms)
        gpu.synchronize()
        if trainer.steps % SCORE_EVERY == SCORE_EVERY - 1:
            score()

    trainer.fit(loader(Images(cpu_ms=0.4), workers=2, start="spawn", batch=24), step)


SCENARIO = Scenario(Label("idle", "pause"), train, env={"OMP_NUM_THREADS": "1"})
