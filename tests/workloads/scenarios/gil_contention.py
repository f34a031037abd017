"""A worker that runs a Python thread beside the loading one (a library's cache warmer): they queue for one GIL."""

from __future__ import annotations

import threading

from torch.utils.data import Dataset

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


class Rows(Dataset[int]):
    """Rows parsed in pure Python."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> int:
        return numbers(2)


def warm_cache(_worker: int) -> None:
    """What the library's users do not know that it does."""
    threading.Thread(target=_forever, name="warm-cache", daemon=True).start()


def _forever() -> None:
    while True:
        numbers(50)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Rows(), workers=1, worker_init_fn=warm_cache), trainer.compute(30))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
