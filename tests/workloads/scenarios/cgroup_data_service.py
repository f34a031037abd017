"""A preprocessing service in a container of its own feeds the trainer; an operator gives that container a small quota.

Truth: the GPU starves (input-bound) because the two `data_service` processes stand still at their group's CPU quota most of each period
(cgroup-throttle), while the host's CPUs idle; the victims are they and the trainer, which is in no such group. A larger `cpu.max` (or
`--cpus`) for the service's container would fix it; more processes in it would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import cgroup, data_service
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PROCESSES, _CPU_MS, _STEP_MS = 2, 14.0, 40.0
_QUOTA_CPUS = 0.1


def train(trainer: Trainer) -> None:
    trainer.fit(data_service.batches(_PROCESSES), trainer.compute(_STEP_MS, bytes_in=data_service.BATCH_BYTES))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group, data_service.serving(running, _PROCESSES, _CPU_MS, group=group):
        (running.folder / "group").symlink_to(group)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.limited_cpu((running.folder / "group").resolve(), _QUOTA_CPUS):
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, prepare, needs=lambda: cgroup.missing("cpu"))
