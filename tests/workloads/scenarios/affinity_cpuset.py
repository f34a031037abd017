"""An operator moves the running job into a cpuset of one CPU; the others idle, and no process has pinned itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus(), start="forkserver"), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpuset", running.name) as group:
        (group / "cpuset.mems").write_text("0")
        (group / "cpuset.cpus").write_text(str(max(os.sched_getaffinity(0))))
        cgroup.add(group, [*running.trainer_pids, *running.workers()])
        yield


SCENARIO = Scenario(Label("input-bound", "affinity"), train, disturb, needs=lambda: cgroup.missing("cpuset"))
