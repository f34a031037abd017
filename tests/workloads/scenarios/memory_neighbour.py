"""A notebook in the job's container fills its memory limit: the data set, cached until then, is read again page by page."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import slow_disk, tight_memory
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROWS_PER_SAMPLE, _ROW_BYTES = 250, 2048
_SPARE_BYTES = 64 << 20
_LEFT_BYTES = 24 << 20
_NOTEBOOK = """
import sys, time
frames = [bytearray(b"x" * (1 << 20)) for _ in range(int(sys.argv[1]) >> 20)]
time.sleep(float(sys.argv[2]))
"""


class Table(Images):
    """Samples put together from random rows of one file."""

    def __getitem__(self, index: int) -> torch.Tensor:
        with slow_disk.opened(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", os.O_RDONLY) as file:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            for _ in range(_ROWS_PER_SAMPLE):
                os.pread(file, _ROW_BYTES, random.randrange(slow_disk.FILE_BYTES // _ROW_BYTES) * _ROW_BYTES)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
    path.read_bytes()  # into the page cache
    trainer.fit(loader(Table(0.3), workers=2), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    spare = slow_disk.FILE_BYTES + _SPARE_BYTES
    with tight_memory.limited(running, spare) as group:
        join = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        notebook = [sys.executable, "-c", _NOTEBOOK, str(spare - _LEFT_BYTES), str(running.seconds + 5)]
        with running.child(["sh", "-c", join, "sh", *notebook]):
            yield


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, tight_memory.group, needs=tight_memory.missing)
