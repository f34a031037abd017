"""A worker per CPU, but each lets its tensor library start four threads per CPU."""

from __future__ import annotations

import time

import torch

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus


class Filtered(Images):
    """Samples that cost ``cpu_ms`` over all threads of the process."""

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.full((1 << 18,), 0.5)
        until = time.process_time() + self.cpu_ms / 1e3
        while time.process_time() < until:
            image.mul_(1.01).sin_()
        return image[:1024].clone()


def many_threads(_worker: int) -> None:
    """torch gives each worker one thread; the script knows better."""
    torch.set_num_threads(4 * cpus())


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Filtered(10), workers=cpus(), worker_init_fn=many_threads), trainer.compute(40 / cpus()))


SCENARIO = Scenario(Label("input-bound", "worker-oversubscription"), train)
