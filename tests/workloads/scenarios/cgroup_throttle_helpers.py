"""A container with a quota that suffices, until a library's helper threads in the trainer begin to spin and use it up."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_HELPERS = 3


def train(trainer: Trainer) -> None:
    compute, flag = trainer.compute(40), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "spin"

    def step(batch: object) -> None:
        if flag.exists():
            flag.unlink()
            for _ in range(_HELPERS):
                threading.Thread(target=_spin, name="progress", daemon=True).start()
        compute(batch)

    trainer.fit(loader(Images(cpu_ms=2.2), workers=2), step)


def _spin() -> None:
    """Wait for what never comes, in C and without the GIL, as the progress threads of communication libraries do."""
    libc, lock = ctypes.CDLL(None), ctypes.c_int()
    libc.pthread_spin_init(ctypes.byref(lock), 0)
    libc.pthread_spin_lock(ctypes.byref(lock))
    libc.pthread_spin_lock(ctypes.byref(lock))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        cgroup.limit_cpu(group, 0.7)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "spin").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
