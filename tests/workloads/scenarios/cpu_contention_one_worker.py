"""One worker that just keeps up, until backup and virus scanner run."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOGS = ("clamscan", "restic")


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=1), trainer.compute(75))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_HOGS, 2 * cpus()))


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_HOGS)), train, disturb)
