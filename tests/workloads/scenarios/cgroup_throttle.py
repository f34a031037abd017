"""The job's control group gets a quota of 0.4 CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=4), workers=2), trainer.compute(35))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        yield


def disturb(running: Running) -> AbstractContextManager[None]:
    return cgroup.limited_cpu(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), 0.4)


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
