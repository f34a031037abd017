"""Other tenants start their fits: one's threads and another's forks each have a `taskset` slot, a third's two JVMs go everywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils.data import Dataset

from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_ROWS, _COLUMNS, _BUCKETS, _BATCH = 100_000, 26, 1 << 16, 512
_BATCH_CPU_MS = 48
_USED = 0.42


class Clicks(Dataset[torch.Tensor]):
    """Categorical columns, fetched by the batch; crosses of them are hashed on the way."""

    def __init__(self) -> None:
        self.table = torch.randint(1 << 31, (_ROWS, _COLUMNS)).share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return _ROWS

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        until = time.thread_time() + _BATCH_CPU_MS / 1e3
        picked = self.table[torch.tensor(rows)]
        while True:
            crosses = [(picked * 31 + picked.roll(by, 1)) % _BUCKETS for by in range(1, 5)]
            if time.thread_time() >= until:
                return torch.cat([picked % _BUCKETS, *crosses], 1)


def _as_it_is(batch: torch.Tensor) -> torch.Tensor:
    return batch


def train(trainer: Trainer) -> None:
    clicks = Clicks()
    batches = loader(clicks, workers=cpus(), start="forkserver", batch=_BATCH, collate_fn=_as_it_is, shuffle=True)
    trainer.fit(batches, trainer.compute(_BATCH_CPU_MS / (_USED * cpus())))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    own = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    slots = own[: -(-len(own) // 2)], own[len(own) // 2 :]
    first, second = (("taskset", "-c", ",".join(slot)) for slot in slots)
    with ExitStack() as stack:
        stack.enter_context(hogs(running, {"lightgbm": 3 * len(slots[0])}, through=first))
        for _ in range(2 * len(slots[1])):
            stack.enter_context(hogs(running, {"R": 1}, through=second))
        for _ in ("driver", "executor"):
            stack.enter_context(hogs(running, {"java": cpus()}))
        yield


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"lightgbm", "R", "java"})), train, disturb)
