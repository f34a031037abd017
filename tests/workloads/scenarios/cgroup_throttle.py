"""The job's control group may use half a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer
from tests.workloads.loop import loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label
from tests.workloads.scenario import Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=4), workers=2), trainer.compute(35))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        cgroup.limit_cpu(group, 0.4)
        cgroup.add(group, [*running.trainer_pids, *running.workers()])
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, needs=lambda: cgroup.missing("cpu"))
