"""A recorder with real-time priority, which the scheduler always prefers to the workers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOG = "jackd"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=6), workers=cpus()), trainer.compute(60 / cpus()))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, {_HOG: cpus()}, duty_pct=55, through=("chrt", "--fifo", "5"))


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_HOG})), train, disturb)
