"""A backup fills the job's slow disk with synchronous writes, and nobody minds: the data set is in the page cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_SAMPLE_BYTES = 128 << 10
_DISK_BYTES_PER_S = 8 << 20


class Cached(Images):
    """Samples read through the page cache, and left there."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with slow_disk.opened(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", os.O_RDONLY) as file:
            os.pread(file, _SAMPLE_BYTES, index * 7919 % (slow_disk.FILE_BYTES // _SAMPLE_BYTES) * _SAMPLE_BYTES)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples").read_bytes()  # into the page cache
    trainer.fit(loader(Cached(1), workers=2), trainer.compute(40))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """One slow disk for the job and the backup: the limits of the group both are in."""
    with cgroup.group("blkio", running.name) as group:
        device = cgroup.device_of(running.folder / "samples")
        cgroup.limit_reads(group, device, _DISK_BYTES_PER_S)
        cgroup.limit_writes(group, device, _DISK_BYTES_PER_S)
        cgroup.add(group, [*running.trainer_pids, *running.workers()])
        write = f"dd if=/dev/zero of={running.folder}/backup bs=1M count=64 conv=notrunc oflag=direct,dsync status=none"
        backup = f"echo $$ > {group}/cgroup.procs; while {write}; do :; done"
        with running.child(["timeout", "-s", "KILL", str(int(running.seconds) + 5), "sh", "-c", backup]):
            yield


SCENARIO = Scenario(HEALTHY, train, disturb, slow_disk.file, needs=slow_disk.missing)
