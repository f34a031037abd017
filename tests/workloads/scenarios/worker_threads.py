"""A worker per CPU, but each lets its tensor library start four threads per CPU, unless OMP_NUM_THREADS asks for another number.

A sample is a fixed amount of work, so that what the threads spend on one another's account is lost: with one thread in each worker it is
faster.
"""

from __future__ import annotations

import os

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_PASSES = 35  # over 2^18 numbers: 10 ms of one thread on a CPU of 2023


class Filtered(Images):
    """Samples that cost a number of passes, split among the process's threads."""

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.full((1 << 18,), 0.5)
        for _ in range(_PASSES):
            image.mul_(1.01).sin_()
        return image[:1024].clone()


def many_threads(_worker: int) -> None:
    """torch gives each worker one thread; the script knows better."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 4 * cpus()))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Filtered(10), workers=cpus(), worker_init_fn=many_threads), trainer.compute(40 / cpus()))


SCENARIO = Scenario(Label("input-bound", "worker-oversubscription"), train)
