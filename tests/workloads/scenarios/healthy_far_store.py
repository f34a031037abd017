"""Each sample takes 150 ms to come from a store that is far away, and none comes late.

An asyncio client in a thread keeps dozens of requests under way and a queue of batches full, as a streaming data set does. Nearly
all its tasks wait for the network all the time: that is what prefetching is for. The GPU is busy nearly always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from queue import Full, Queue
from threading import Thread

from tests.workloads import async_store
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_BATCH, _CONNECTIONS, _UNDER_WAY, _LATENCY_MS, _GPU_MS = 4, 48, 10, 150, 50


async def _stream(ready: Queue[list[bytes]]) -> None:
    client = async_store.Client()
    await client.connect(_CONNECTIONS)

    async def keep_on() -> None:
        while True:
            batch = await client.batch(_BATCH)
            while True:
                try:
                    ready.put_nowait(batch)
                    break
                except Full:
                    await asyncio.sleep(0.03)

    await asyncio.gather(*(keep_on() for _ in range(_UNDER_WAY)))


def _batches() -> Iterator[list[bytes]]:
    ready: Queue[list[bytes]] = Queue(8)
    Thread(target=asyncio.run, args=(_stream(ready),), daemon=True).start()
    while True:
        yield ready.get()


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(_GPU_MS))


def store(running: Running) -> AbstractContextManager[None]:
    return async_store.serving(running, _LATENCY_MS)


SCENARIO = Scenario(HEALTHY, train, prepare=store)
