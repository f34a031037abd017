"""An image folder of small files, which threads of each worker read for a whole batch at once; then the volume's burst of IOPS is spent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import slow_disk
from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_FILES, _CLASSES, _FILE_BYTES = 4000, 50, 20_000
_BATCH, _THREADS = 24, 8
_READS_PER_S = 100


class Folder(Dataset[torch.Tensor]):
    """`samples/CLASS/NUMBER.jpg`; a file has left the page cache when it comes again."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*.jpg"))
        self.threads: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.threads = self.threads or ThreadPoolExecutor(_THREADS)
        return list(self.threads.map(self.__getitem__, indices))

    def __getitem__(self, index: int) -> torch.Tensor:
        with slow_disk.opened(self.paths[index], os.O_RDONLY) as file:
            os.read(file, _FILE_BYTES)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # the data set is larger than memory
        return decode(0.4)


def train(trainer: Trainer) -> None:
    images = Folder(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples")
    trainer.fit(loader(images, workers=2, start="forkserver", batch=_BATCH, shuffle=True, drop_last=True), trainer.compute(70, kernels=12))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The files, on disk and out of the page cache."""
    paths = [running.folder / "samples" / f"n{number % _CLASSES:08}" / f"{number}.jpg" for number in range(_FILES)]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_FILE_BYTES))
    os.sync()
    for path in paths:
        with slow_disk.opened(path, os.O_RDONLY) as file:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    yield


def limit_reads(group: Path, device: str, reads_per_s: int) -> None:
    """So many reads per second, of whatever size."""
    if (group / "io.max").exists():
        (group / "io.max").write_text(f"{device} riops={reads_per_s}")
    else:
        (group / "blkio.throttle.read_iops_device").write_text(f"{device} {reads_per_s}")


def disturb(running: Running) -> AbstractContextManager[None]:
    return slow_disk.throttle(running, limit_reads, _READS_PER_S)


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, disturb, prepare, needs=slow_disk.missing)
