"""A far store read as fsspec does, by an event loop in a thread of the trainer: each answer is late, but enough are on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import Thread

from tests.workloads import async_store
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_BATCH, _AHEAD = 8, 8


def batches() -> Iterator[object]:
    """Batches in order, `_AHEAD` of them asked for."""
    loop, client = asyncio.new_event_loop(), async_store.Client()
    Thread(target=loop.run_forever, name="fsspecIO", daemon=True).start()
    asyncio.run_coroutine_threadsafe(client.connect(_BATCH * _AHEAD), loop).result()
    coming = deque(asyncio.run_coroutine_threadsafe(client.batch(_BATCH), loop) for _ in range(_AHEAD))
    while True:
        yield coming.popleft().result()
        coming.append(asyncio.run_coroutine_threadsafe(client.batch(_BATCH), loop))


def train(trainer: Trainer) -> None:
    trainer.fit(batches(), trainer.compute(40))


def prepare(running: Running) -> AbstractContextManager[None]:
    return async_store.serving(running, latency_ms=150)


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
