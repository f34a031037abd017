"""Somebody runs `docker update --cpus 0.6` on the container of a job that uses one and a half CPUs.

Three forkserver workers read an IterableDataset in whole batches and had kept up. With the quota they are stopped for the rest of
each period once its 60 ms are used, together with the main thread, although the host's CPUs idle meanwhile. Nobody competes
with them and no affinity holds them: the control group's CPU quota is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads import cgroup
from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CPUS = 0.6
_BATCH = 16


class Stream(IterableDataset[torch.Tensor]):
    """Batches without end; each worker makes its own."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.stack([decode(2.2) for _ in range(_BATCH)])


def train(trainer: Trainer) -> None:
    batches = DataLoader(
        Stream(), batch_size=None, num_workers=3, prefetch_factor=4, persistent_workers=True, multiprocessing_context="forkserver"
    )  # fmt: skip
    trainer.fit(batches, trainer.compute(28))


@contextmanager
def container(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as path:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


@contextmanager
def update(running: Running) -> Iterator[None]:
    with cgroup.limited_cpu(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), _CPUS):
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, update, container, needs=lambda: cgroup.missing("cpu"))
