"""No workers: an event loop in the trainer's main thread fetches batches ahead over eight connections, and the store slows."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractContextManager

from tests.workloads import async_store, web
from tests.workloads.loop import Over, Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_BATCH, _CONNECTIONS, _AHEAD = 16, 8, 4


async def fit(trainer: Trainer) -> None:
    """Train on what the event loop has brought."""
    client, step = async_store.Client(), trainer.compute_ahead(30)
    await client.connect(_CONNECTIONS)
    coming = deque(asyncio.create_task(client.batch(_BATCH)) for _ in range(_AHEAD))
    while True:
        batch = await coming.popleft()
        coming.append(asyncio.create_task(client.batch(_BATCH)))
        step(batch)
        trainer.tick()


def train(trainer: Trainer) -> None:
    try:
        asyncio.run(fit(trainer))
    except Over:
        return


def prepare(running: Running) -> AbstractContextManager[None]:
    return async_store.serving(running, latency_ms=2, slow_ms=40)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare=prepare)
