"""Producers of a home-made loader whose CPUs a backup takes."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads import handmade
from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOG = "restic"


def train(trainer: Trainer) -> None:
    trainer.fit(handmade.queued(Images(cpu_ms=7).__getitem__, workers=cpus()), trainer.compute(80 / cpus()))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, {_HOG: 3 * cpus()})


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_HOG})), train, disturb)
