"""Samples live in an SQLite file, and a labelling tool writes to it in long transactions: the workers retry, the database is locked."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch

from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROWS = 500
_WRITER = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    database.execute("BEGIN EXCLUSIVE")
    for row in range(20):
        database.execute("UPDATE samples SET label = label + 1 WHERE id = ?", (row,))
        time.sleep(0.015)  # somebody's annotations come in one by one
    database.execute("COMMIT")
    time.sleep(0.03)
"""


class Rows(Images):
    """Samples selected by their id, on a connection of each worker's own."""

    database: sqlite3.Connection | None = None

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.database is None:
            self.database = sqlite3.connect(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples.db", timeout=60)
        self.database.execute("SELECT image, label FROM samples WHERE id = ?", (index % _ROWS,)).fetchone()
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Rows(0.5), workers=3), trainer.compute(25))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with closing(sqlite3.connect(running.folder / "samples.db")) as database:
        database.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, image BLOB, label INTEGER)")
        database.executemany("INSERT INTO samples VALUES (?, ?, 0)", ((i, os.urandom(20_000)) for i in range(_ROWS)))
        database.commit()
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with running.child([sys.executable, "-c", _WRITER, str(running.folder / "samples.db"), str(running.seconds + 5)]):
        yield


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, disturb, prepare)
