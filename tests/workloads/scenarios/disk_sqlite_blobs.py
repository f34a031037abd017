"""Thumbnails are blobs in a SQLite table that is larger than what the page cache keeps, on a disk that has become slow.

Each worker of the forkserver has a read-only connection of its own and looks rows up by a shuffled id; the library reads them
page by page. Unpacking costs next to nothing. When the volume falls to some megabytes a second (its burst credits are used up,
a neighbour on the same array), the workers sleep in reads of the file and nowhere else. Reading from the disk is the cause; no
lock is involved, for nobody writes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from tests.workloads import cgroup, slow_disk
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROWS, _BLOB_BYTES = 1000, 130_000
_BYTES_PER_S = 40 << 20


class Table(Images):
    """Blobs by row id; what was read leaves the page cache, as it does where the table is larger than memory."""

    table: sqlite3.Connection | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "thumbs.db"
        if self.table is None:
            self.table = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
            self.table.execute("PRAGMA cache_size = 8")
        self.table.execute("SELECT image FROM thumbs WHERE id = ?", (index * 7919 % _ROWS + 1,)).fetchone()
        if index % 16 == 0:
            with slow_disk.opened(path, os.O_RDONLY) as file:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Table(0.4), workers=2, start="forkserver"), trainer.compute(25))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    path = running.folder / "thumbs.db"
    with closing(sqlite3.connect(path)) as table:
        table.executescript("PRAGMA page_size = 16384; PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        table.execute("CREATE TABLE thumbs (id INTEGER PRIMARY KEY, image BLOB)")
        table.executemany("INSERT INTO thumbs (image) VALUES (?)", ((os.urandom(_BLOB_BYTES),) for _ in range(_ROWS)))
        table.commit()
    with slow_disk.opened(path, os.O_RDWR) as file:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    yield


@contextmanager
def slow(running: Running) -> Iterator[None]:
    with cgroup.group("blkio", running.name) as group:
        cgroup.limit_reads(group, cgroup.device_of(running.folder / "thumbs.db"), _BYTES_PER_S)
        cgroup.add(group, [*running.trainer_pids, *running.workers()])
        yield


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, slow, prepare, needs=slow_disk.missing)
