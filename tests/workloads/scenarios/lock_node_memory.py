"""A temporal graph network: loaders read the nodes' memory under the lock that its updater holds as writer most of the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkContext

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_NODES, _WIDTH, _NEIGHBOURS = 20_000, 64, 10
_EVENTS = 80
_BATCH_CPU_MS, _STEP_MS = 3, 25
_UPDATE_CPU_MS, _NEW_EVENTS_MS = 400, 100


class ReadWriteLock:
    """Many readers or one writer, as in the Python Cookbook, between processes."""

    def __init__(self, context: ForkContext) -> None:
        self._free = context.Condition(context.Lock())
        self._readers = context.Value("i", 0, lock=False)

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._free:
            self._readers.value += 1
        try:
            yield
        finally:
            with self._free:
                self._readers.value -= 1
                if not self._readers.value:
                    self._free.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._free:
            self._free.wait_for(lambda: not self._readers.value)
            yield


class Events(IterableDataset[torch.Tensor]):
    """Batches of interactions, with the memory of whom they concern and of those they met last."""

    def __init__(self, memory: torch.Tensor, lock: ReadWriteLock) -> None:
        self.memory, self.lock = memory, lock
        self.met = torch.randint(_NODES, (_NODES, _NEIGHBOURS))

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            until = time.thread_time() + _BATCH_CPU_MS / 1e3
            while time.thread_time() < until:
                nodes = self.met[torch.randint(_NODES, (_EVENTS,))].unique()  # type: ignore[no-untyped-call]
            with self.lock.reading():
                state = self.memory[nodes]
            yield state


def _update(memory: torch.Tensor, lock: ReadWriteLock) -> None:
    torch.set_num_threads(1)
    cell = torch.nn.GRUCell(_WIDTH, _WIDTH)
    while True:
        time.sleep(_NEW_EVENTS_MS / 1e3)
        with lock.writing(), torch.inference_mode():
            until = time.thread_time() + _UPDATE_CPU_MS / 1e3
            while time.thread_time() < until:
                touched = torch.randint(_NODES, (_EVENTS,))
                memory[touched] = cell(torch.randn(_EVENTS, _WIDTH), memory[touched])


def train(trainer: Trainer) -> None:
    context = torch.multiprocessing.get_context("fork")
    memory: torch.Tensor = torch.zeros(_NODES, _WIDTH).share_memory_()  # type: ignore[no-untyped-call]
    lock = ReadWriteLock(context)
    context.Process(target=_update, args=(memory, lock), name="memory-updater", daemon=True).start()
    events = DataLoader(Events(memory, lock), batch_size=None, num_workers=2, multiprocessing_context=context)
    trainer.fit(events, trainer.compute(_STEP_MS))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train)
