"""An event loop in a thread fetches a batch's records one by one over nine connections; the main thread wakes more often than it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from queue import Queue
from threading import Thread

from tests.workloads import async_store, web
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_BATCH, _CONNECTIONS, _AHEAD, _PARTS = 14, 9, 48, 20
_PART_MS = 4.5


async def fetch(ready: Queue[bytes]) -> None:
    """Record after record, for ever, no more than there is room for."""
    client = async_store.Client()
    await client.connect(_CONNECTIONS)

    async def one_after_the_other() -> None:
        while True:
            (record,) = await client.batch(1)
            while ready.full():
                await asyncio.sleep(0.01)
            ready.put_nowait(record)

    await asyncio.gather(*(one_after_the_other() for _ in range(_CONNECTIONS)))


def batches() -> Iterator[object]:
    ready: Queue[bytes] = Queue(_AHEAD)
    Thread(target=lambda: asyncio.run(fetch(ready)), daemon=True).start()
    while True:
        yield [ready.get() for _ in range(_BATCH)]


def train(trainer: Trainer) -> None:
    def step(_batch: object) -> None:
        trainer.gpu.copy_in(1 << 20)
        for _ in range(_PARTS):
            trainer.gpu.launch(_PART_MS)
            trainer.gpu.synchronize()

    trainer.fit(batches(), step)


def prepare(running: Running) -> AbstractContextManager[None]:
    return async_store.serving(running, latency_ms=5, slow_ms=230)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare=prepare)
