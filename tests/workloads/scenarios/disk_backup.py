"""The disk is fast enough for the workers, until a backup reads from it as fast as it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import cgroup, slow_disk
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.disk_cold import Cold

_DISK_BYTES_PER_S = 64 << 20


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Cold(0.3), workers=3), trainer.compute(40))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """One disk for the job and the backup: the limit of the group both are in."""
    with slow_disk.file(running), cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "samples"), _DISK_BYTES_PER_S)
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    group = Path(running.env["GPUTOP_WORKLOAD_CGROUP"])
    backup = f"echo $$ > {group}/cgroup.procs; while dd if={running.folder}/samples of=/dev/null bs=2M iflag=direct status=none; do :; done"
    with running.child(["timeout", "-s", "KILL", str(int(running.seconds) + 5), "sh", "-c", backup]):
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=slow_disk.missing)
