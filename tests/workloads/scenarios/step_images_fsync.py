"""At each step the main thread appends the predicted images to an event file and syncs it, on a disk that becomes slow."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_EVENT_BYTES, _KEPT = 512 << 10, 64
_WRITE_BYTES_PER_S = 3 << 20


class Events:
    """The last `_KEPT` steps' images, each safe on disk when `add` returns."""

    def __init__(self) -> None:
        self._file = os.open(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", os.O_WRONLY | os.O_CREAT)
        self._event = os.urandom(_EVENT_BYTES)
        self._added = 0

    def add(self) -> None:
        """Write and sync one."""
        os.pwrite(self._file, self._event, self._added % _KEPT * _EVENT_BYTES)
        os.fsync(self._file)
        self._added += 1


def train(trainer: Trainer) -> None:
    compute, events = trainer.compute(60), Events()

    def step(batch: object) -> None:
        compute(batch)
        trainer.gpu.copy_out(_EVENT_BYTES)
        events.add()

    trainer.fit(loader(Images(cpu_ms=0.5), workers=2), step)


def disturb(running: Running) -> AbstractContextManager[None]:
    return slow_disk.throttle(running, cgroup.limit_writes, _WRITE_BYTES_PER_S)


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, needs=slow_disk.missing)
