"""A daemon's actors, which prepare the batches, are in a control group of their own; that one gets a quota, the trainer has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.workloads import actors, cgroup
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(actors.batches(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])), trainer.compute(40))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group, actors.serving(running, actors=2, cpu_ms=4, group=group):
        running.env["GPUTOP_ACTORS_CGROUP"] = str(group)
        yield


def disturb(running: Running) -> AbstractContextManager[None]:
    return cgroup.limited_cpu(Path(running.env["GPUTOP_ACTORS_CGROUP"]), 0.3)


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
