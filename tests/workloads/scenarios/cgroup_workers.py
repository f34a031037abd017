"""A rules daemon moves the workers, and only them, into the group of background tasks, whose quota is dealt out every 10 ms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup
from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def limit(group: Path, quota_us: int, period_us: int) -> None:
    """A CFS quota in periods of any length."""
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=4), workers=2), trainer.compute(35))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with cgroup.group("cpu", running.name) as group:
        limit(group, quota_us=4_000, period_us=10_000)
        cgroup.add(group, running.workers())
        yield


SCENARIO = Scenario(Label("input-bound", "cgroup-throttle"), train, disturb, needs=lambda: cgroup.missing("cpu"))
