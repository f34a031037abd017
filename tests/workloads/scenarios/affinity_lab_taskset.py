"""The script that keeps a lab's workstation responsive puts every long job, all of its threads, on the last CPU (`taskset -a`)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario, cpus

_STEP_MS, _BATCH = 6.0, 3


class Sweeps(Dataset[torch.Tensor]):
    """Lidar sweeps put into voxels, ``cpu_ms`` each."""

    def __init__(self, cpu_ms: float) -> None:
        self.cpu_ms = cpu_ms

    def __len__(self) -> int:
        return 28_130

    def __getitem__(self, index: int) -> torch.Tensor:
        until, random = time.thread_time() + self.cpu_ms / 1e3, torch.Generator().manual_seed(index)
        grid = torch.zeros(32 * 32 * 8)
        while time.thread_time() < until:
            points = torch.rand(16_384, 3, generator=random).mul_(torch.tensor([32.0, 32.0, 8.0])).long()
            voxels = (points[:, 0] * 32 + points[:, 1]) * 8 + points[:, 2]
            grid.index_add_(0, voxels, torch.ones(16_384))
        return grid.clamp_(max=5)


def train(trainer: Trainer) -> None:
    sweeps = Sweeps(cpu_ms=0.5 * cpus() * _STEP_MS / _BATCH)
    trainer.fit(loader(sweeps, 2 * cpus(), "forkserver", _BATCH, shuffle=True), _step(trainer))


def _step(trainer: Trainer) -> Callable[[object], None]:
    """Forward, `loss.item()`, and then backward and the optimizer, which are left to run."""

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(3 << 15)
        trainer.gpu.launch(0.3 * _STEP_MS)
        trainer.gpu.copy_out()
        trainer.gpu.launch(0.55 * _STEP_MS)
        trainer.gpu.launch(0.15 * _STEP_MS, blocks=96)

    return step


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    last = str(max(os.sched_getaffinity(0)))
    for pid in [*running.trainer_pids, *descendants(running.trainer_pids)]:
        subprocess.run(["taskset", "-acp", last, str(pid)], check=False, stdout=subprocess.DEVNULL)
    yield


SCENARIO = Scenario(Label("input-bound", "affinity"), train, disturb, needs=lambda: "" if cpus() > 1 else "one CPU only")
