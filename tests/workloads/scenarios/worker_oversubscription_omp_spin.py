"""`worker_init_fn` gives each of many workers as many torch threads as there are CPUs, under OMP_WAIT_POLICY=active.

torch starts workers with one thread for good reason. Here each of them has an OpenMP team for the whole machine, whose members
spin while they wait for the next parallel region, also when their worker waits for room in its queue. The images' blur and resize
need a third of the machine with one thread for each worker; the spinning threads of the job's own workers take the rest of it
from those that have work, and the GPU waits. No other process takes part: too many threads of its own is the cause.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_WORKERS_PER_CPU = 2


class Blurred(Dataset[torch.Tensor]):
    """Noise as an image, smoothed and made smaller: operations that torch splits over its threads."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.empty(1, 3, 192, 192).uniform_()
        kernel = torch.full((3, 1, 3, 3), 1 / 9)
        smooth = functional.conv2d(image, kernel, padding=1, groups=3)
        small = functional.interpolate(smooth, size=(96, 96), mode="bilinear")
        return small.sub_(small.mean()).div_(small.std())[0]


def use_all_cpus(_worker: int) -> None:
    """What a forum answer said would make it faster."""
    torch.set_num_threads(cpus())


def train(trainer: Trainer) -> None:
    batches = loader(Blurred(), workers=_WORKERS_PER_CPU * cpus(), start="fork", worker_init_fn=use_all_cpus)
    trainer.fit(batches, trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "worker-oversubscription"), train, env={"OMP_WAIT_POLICY": "active"})
