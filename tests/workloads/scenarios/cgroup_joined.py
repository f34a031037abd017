"""An operator moves the running job into a control group whose parent has a quota."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=3), workers=3, start="spawn"), trainer.compute(35))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as parent:
        cgroup.limit_cpu(parent, 0.3)
        child = parent / "job"
        child.mkdir()
        cgroup.add(child, [*running.trainer_pids, *running.workers()])
        try:
            yield
        finally:
            cgroup.remove(child, parent.parent)


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, needs=lambda: cgroup.missing("cpu"))
