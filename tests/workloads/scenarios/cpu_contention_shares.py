"""A neighbour's nice 19, which counts only inside its own control group; the group itself has sixteen times the usual shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_HOG = "gmx_mpi"


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=8), workers=cpus()), trainer.compute(80 / cpus()))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group, hogs(running, {_HOG: cpus()}, through=("nice", "-n", "19")):
        _prefer(group)
        cgroup.add(group, list(running.culprits))
        yield


def _prefer(group: Path) -> None:
    if (group / "cpu.weight").exists():
        (group / "cpu.weight").write_text("1600")
    else:
        (group / "cpu.shares").write_text("16384")


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_HOG})), train, disturb, needs=lambda: cgroup.missing("cpu"))
