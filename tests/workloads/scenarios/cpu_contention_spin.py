"""A trainer that spins for its GPU, as CUDA does by default, and scans that take the CPUs of its workers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOGS = ("clamscan", "rkhunter")
_SPINS = {"GPUTOP_CUDA_SCHEDULE": "spin"}


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=6), workers=2), trainer.compute(60))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_HOGS, 4 * cpus()))


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_HOGS)), train, disturb, env=_SPINS)
