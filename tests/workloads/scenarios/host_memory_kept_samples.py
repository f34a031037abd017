"""Each worker keeps what it has decoded, in a container with a limit; the GPU never waits, until one day nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import cgroup, tight_memory
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_KEPT_BYTES = 64 << 10  # of each sample; 270 of them a second
_ROOM_BYTES = 2 << 30


class Kept(Images):
    """Images that are appended to a list once a flag is up."""

    def __init__(self, cpu_ms: float) -> None:
        super().__init__(cpu_ms)
        self.kept: list[bytearray] = []
        self.flag = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "keep"

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.flag.exists():
            self.kept.append(bytearray(b"x" * _KEPT_BYTES))
        return super().__getitem__(index)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Kept(0.3), workers=2), trainer.compute(30))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """A memory control group, joined before anything is allocated, so that all of it counts."""
    with cgroup.group("memory", running.name) as path:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(path)
        yield


@contextmanager
def limit(running: Running) -> Iterator[None]:
    """From now on there are 2 GiB left, and samples are kept."""
    with tight_memory.limited(running, _ROOM_BYTES):
        (running.folder / "keep").touch()
        yield


SCENARIO = Scenario(
    Label("healthy", "none", beside="host-memory-growth"), train, limit, prepare, needs=tight_memory.missing, least_s=42.0
)
