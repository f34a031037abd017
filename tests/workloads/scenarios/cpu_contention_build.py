"""A colleague's many-threaded job beside spawned workers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOG = "blender"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus(), start="spawn"), trainer.compute(80 / cpus()))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, {_HOG: 6 * cpus()})


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_HOG})), train, disturb)
