"""Click logs in a column store read by direct I/O, on a cloud volume whose burst credits run out: requests are rationed, not bytes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CHUNK_BYTES = 32 << 10
_COLUMNS, _WANTED = 16, (0, 3, 7, 12)
_GROUPS = slow_disk.FILE_BYTES // (_COLUMNS * _CHUNK_BYTES)
_BASELINE_IOPS = 250


class Clicks(Dataset[torch.Tensor]):
    """A row group a sample: the columns wanted, each with a read of its own, a few at a time."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return _GROUPS

    def __getitem__(self, group: int) -> torch.Tensor:
        if self.pool is None:
            self.descriptor = os.open(self.file, os.O_RDONLY | os.O_DIRECT)
            self.own = local()
            self.pool = ThreadPoolExecutor(len(_WANTED), thread_name_prefix="column")
        columns = self.pool.map(self._column, [(group * _COLUMNS + column) * _CHUNK_BYTES for column in _WANTED])
        clicks = torch.stack(list(columns)).view(torch.int32).remainder_(1 << 20)
        decode(0.3)
        return clicks

    def _column(self, at: int) -> torch.Tensor:
        if not hasattr(self.own, "buffer"):
            self.own.buffer = mmap.mmap(-1, _CHUNK_BYTES)  # aligned, as direct I/O wants it
        os.preadv(self.descriptor, [self.own.buffer], at)
        return torch.frombuffer(bytearray(self.own.buffer), dtype=torch.uint8)


def train(trainer: Trainer) -> None:
    clicks = Clicks(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples")
    step = trainer.compute(60, kernels=3, bytes_in=8 * len(_WANTED) * _CHUNK_BYTES, pinned=True)
    trainer.fit(loader(clicks, workers=2, start="forkserver", shuffle=True, prefetch_factor=4), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The file, and the group that the volume's limit will hold for."""
    with slow_disk.file(running), cgroup.group("blkio", running.name) as group:
        running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    group, device = Path(running.env["GPUTOP_WORKLOAD_CGROUP"]), cgroup.device_of(running.folder / "samples")
    if cgroup.is_v2("blkio"):
        (group / "io.max").write_text(f"{device} riops={_BASELINE_IOPS}")
    else:
        (group / "blkio.throttle.read_iops_device").write_text(f"{device} {_BASELINE_IOPS}")
    yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=slow_disk.missing)
