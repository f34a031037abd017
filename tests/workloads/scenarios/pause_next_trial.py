"""A sweep of short trials over one loader: before each, the trainer fits a Gaussian process to the study so far to choose what to try."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from itertools import islice

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Over, Trainer, loader
from tests.workloads.scenario import Label, Scenario

_STEPS = 40
_FIT_S = 1.6
_PARAMETERS, _EARLIER, _CANDIDATES = 6, 300, 2000


class Study:
    """The trials so far, those of earlier nights among them, and what to try next."""

    def __init__(self) -> None:
        self.tried = torch.rand(_EARLIER, _PARAMETERS)
        self.losses = self._evaluate(self.tried)

    @staticmethod
    def _evaluate(points: torch.Tensor) -> torch.Tensor:
        return (points - 0.4).square().sum(-1) + 0.05 * torch.randn(points.shape[:-1])

    def told(self, point: torch.Tensor) -> None:
        self.tried = torch.cat([self.tried, point[None]])
        self.losses = torch.cat([self.losses, self._evaluate(point[None])])

    def ask(self) -> torch.Tensor:
        """The candidate of the greatest expected improvement, under the best of as many kernels as `_FIT_S` allows."""
        until, best, chosen = time.monotonic() + _FIT_S, -math.inf, torch.rand(_PARAMETERS)
        targets = ((self.losses - self.losses.mean()) / self.losses.std())[:, None]
        while time.monotonic() < until:
            scales, noise = torch.rand(_PARAMETERS) + 0.2, 0.01 + 0.2 * torch.rand(())
            points = self.tried / scales
            kernel = torch.exp(-torch.cdist(points, points).square() / 2) + noise * torch.eye(len(points))
            factor = torch.linalg.cholesky(kernel)
            weights = torch.cholesky_solve(targets, factor)
            likelihood = float(-(targets * weights).sum() / 2 - factor.diagonal().log().sum())
            if likelihood > best:
                best, candidates = likelihood, torch.rand(_CANDIDATES, _PARAMETERS)
                cross = torch.exp(-torch.cdist(candidates / scales, points).square() / 2)
                solved = torch.linalg.solve_triangular(factor, cross.T, upper=False)
                spread = (1 + noise - solved.square().sum(0)).clamp_min(1e-6).sqrt()
                gain = (targets.min() - (cross @ weights)[:, 0]) / spread
                density = torch.exp(-gain.square() / 2) / math.sqrt(2 * math.pi)
                improvement = spread * (gain * torch.special.ndtr(gain) + density)
                chosen = candidates[improvement.argmax()]
        return chosen


def train(trainer: Trainer) -> None:
    study, batches = Study(), iter(loader(Images(cpu_ms=1.5), workers=2, prefetch_factor=4))
    with suppress(Over):
        while True:
            point = study.ask()
            step = trainer.compute(35 + 20 * float(point[0]))
            for batch in islice(batches, _STEPS):
                step(batch)
                trainer.tick()
            study.told(point)


SCENARIO = Scenario(Label("idle", "pause"), train)
