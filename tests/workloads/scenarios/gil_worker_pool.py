"""A worker that parses its batch in a pool of threads, in pure Python: the pool is meant for all CPUs, and the GIL leaves it one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import Dataset

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_THREADS = 8


class Rows(Dataset[int]):
    """A batch is asked for at once, and each thread takes some of its rows."""

    _pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return 1 << 20

    def __getitems__(self, indices: list[int]) -> list[int]:
        self._pool = self._pool or ThreadPoolExecutor(_THREADS)
        return list(self._pool.map(numbers, [5.0] * len(indices)))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Rows(), workers=1), trainer.compute(24))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
