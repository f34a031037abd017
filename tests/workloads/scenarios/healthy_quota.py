"""A container whose quota suffices: many of its 10 ms periods end with everybody throttled, and the queue is full all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario
from tests.workloads.scenarios.cgroup_workers import limit


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=2.5), workers=2), trainer.compute(50))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        limit(group, quota_us=6_000, period_us=10_000)
        yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare, needs=lambda: cgroup.missing("cpu"))
