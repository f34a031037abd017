"""A neighbour takes what CPU time is idle, and nothing that the job wants: nobody is at fault."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(50))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, {"boinc": 2 * cpus()}, through=("chrt", "--idle", "0"))


SCENARIO = Scenario(HEALTHY, train, disturb)
