"""A pod whose quota holds for all its containers together: the log shipper beside the training catches up and uses the most of it."""

from __future__ import annotations

import itertools
import os
import random
import sqlite3
import time
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_QUOTA_CPUS = 0.65
_MOLECULES, _ATOMS, _CUTOFF = 4000, 60, 5.0
_SHIPPER = "fluent-bit"
_CELLS = torch.tensor(list(itertools.product((-1.0, 0.0, 1.0), repeat=3))) * 12


class Molecules(Dataset[torch.Tensor]):
    """Structures from an ASE-like database, each with the list of its periodic neighbours (``cpu_ms`` of work)."""

    def __init__(self, file: Path, cpu_ms: float) -> None:
        self.file, self.cpu_ms = file, cpu_ms
        self.rows: sqlite3.Connection | None = None

    def __len__(self) -> int:
        return _MOLECULES

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + self.cpu_ms / 1e3
        if self.rows is None:
            self.rows = sqlite3.connect(f"file:{self.file}?mode=ro&immutable=1", uri=True)
        (blob,) = self.rows.execute("SELECT positions FROM systems WHERE id = ?", (index,)).fetchone()
        atoms, degree = torch.frombuffer(bytearray(zlib.decompress(blob)), dtype=torch.float32).view(_ATOMS, 3), torch.zeros(_ATOMS)
        for cell in itertools.cycle(_CELLS):
            degree += (torch.cdist(atoms, atoms + cell) < _CUTOFF).sum(1)
            if time.thread_time() >= until:
                break
        return torch.cat([atoms, degree[:, None]], 1)


def train(trainer: Trainer) -> None:
    molecules = Molecules(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "molecules.db", cpu_ms=2.2)
    trainer.fit(loader(molecules, workers=2, shuffle=True), trainer.compute(40, kernels=6))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The database, and the pod: the quota is its own, its containers' groups below it have none."""
    with sqlite3.connect(running.folder / "molecules.db") as rows:
        rows.execute("CREATE TABLE systems (id INTEGER PRIMARY KEY, positions BLOB)")
        blobs = [zlib.compress(array("f", [random.uniform(0, 12) for _ in range(3 * _ATOMS)]).tobytes()) for _ in range(64)]
        rows.executemany("INSERT INTO systems VALUES (?, ?)", ((row, random.choice(blobs)) for row in range(_MOLECULES)))
    rows.close()
    with cgroup.pod("cpu", running, _SHIPPER) as pod:
        cgroup.limit_cpu(pod, _QUOTA_CPUS)
        yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with hogs(running, {_SHIPPER: 2}):
        cgroup.add(Path(running.env["GPUTOP_WORKLOAD_CGROUP"]).parent / _SHIPPER, list(running.culprits))
        yield


SCENARIO = Scenario(
    Label("input-bound", "cgroup-throttle", frozenset({_SHIPPER})), train, disturb, prepare, needs=lambda: cgroup.missing("cpu")
)
