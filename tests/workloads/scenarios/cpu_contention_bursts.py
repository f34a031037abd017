"""Others take all CPUs for 200 ms, then none for 200 ms."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOGS = ("cron-report", "fluentd", "vector")


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=9), workers=cpus()), trainer.compute(80 / cpus()))


def disturb(running: Running) -> AbstractContextManager[None]:
    return hogs(running, dict.fromkeys(_HOGS, 2 * cpus()), duty_pct=50, period_ms=400)


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset(_HOGS)), train, disturb)
