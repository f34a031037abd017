"""A worker for each two CPUs, which decodes its batch in a pool of two threads, in C and without the GIL: every CPU is full."""

from __future__ import annotations

import time
import zlib
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_THREADS = 2
_BYTES = 256 << 10
_PACKED = zlib.compress(bytes(range(256)) * (_BYTES // 256), 1)


class Pictures(Dataset[int]):
    """Pictures; a batch is asked for at once and unpacked by the worker's own pool."""

    _pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            zlib.decompress(_PACKED, bufsize=_BYTES)
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self._pool = self._pool or ThreadPoolExecutor(_THREADS)
        return list(self._pool.map(self.__getitem__, indices))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Pictures(), workers=max(1, cpus() // _THREADS)), trainer.compute(60 / cpus()))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
