"""Asynchronous training of three ranks on an embedding table in shared memory: one semaphore is held from the lookup to the update."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS = 3
_ROWS, _WIDTH = 1 << 16, 64
_BATCH = 1024
_SPARSE_MS, _DENSE_MS = 30.0, 12.0


class Clicks(IterableDataset[torch.Tensor]):
    """Which row each click is about."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.randint(_ROWS, (_BATCH,))


class Table:
    """The rows all ranks train, and the process-shared POSIX semaphore that guards them."""

    def __init__(self, folder: Path) -> None:
        self.rows = torch.from_file(str(folder / "table"), shared=True, size=_ROWS * _WIDTH).view(_ROWS, _WIDTH)
        with (folder / "table.sem").open("r+b") as file:
            self._semaphore = (ctypes.c_char * 32).from_buffer(mmap.mmap(file.fileno(), 32))
        self._libc = ctypes.CDLL("libc.so.6", use_errno=True)

    def initialize(self) -> None:
        """Once, before the ranks start: free."""
        self._libc.sem_init(self._semaphore, 1, 1)

    @contextmanager
    def locked(self) -> Iterator[torch.Tensor]:
        """The rows, for one rank at a time."""
        while self._libc.sem_wait(self._semaphore):
            pass
        try:
            yield self.rows
        finally:
            self._libc.sem_post(self._semaphore)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    gpu, table = trainer.gpu, Table(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]))
    gradients = torch.full((_BATCH, _WIDTH), 1e-3)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        with table.locked() as rows:
            picked = rows[batch[0]]
            gpu.copy_in(picked.nbytes, pinned=True)
            gpu.launch(_SPARSE_MS / 3)
            gpu.launch(_SPARSE_MS * 2 / 3)
            gpu.copy_out(picked.nbytes)
            rows.index_add_(0, batch[0], gradients, alpha=-0.01)
        for _ in range(3):
            gpu.launch(_DENSE_MS / 3)
        gpu.synchronize()

    trainer.fit(loader(Clicks(), workers=1, batch=1), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "table").write_bytes(bytes(_ROWS * _WIDTH * 4))
    (running.folder / "table.sem").write_bytes(bytes(32))
    Table(running.folder).initialize()
    yield


SCENARIO = Scenario(Label("wait-heavy", "lock-contention"), train, prepare=prepare, ranks=_RANKS, devices=_RANKS)
