"""Workers read remote files as fsspec does: an event loop in a thread of each asks for the ranges, the main thread waits for its answer."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from threading import Thread

import torch

from tests.workloads import async_store, web
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANGES, _CONNECTIONS = 8, 4


class Remote(Images):
    """Samples of several ranges each."""

    loop: asyncio.AbstractEventLoop | None = None
    client: async_store.Client

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.loop is None:
            self.loop, self.client = asyncio.new_event_loop(), async_store.Client()
            Thread(target=self.loop.run_forever, name="fsspecIO", daemon=True).start()
            asyncio.run_coroutine_threadsafe(self.client.connect(_CONNECTIONS), self.loop).result()
        asyncio.run_coroutine_threadsafe(self.client.batch(_RANGES), self.loop).result()
        return decode(self.cpu_ms)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Remote(0.5), workers=3), trainer.compute(30))


def prepare(running: Running) -> AbstractContextManager[None]:
    return async_store.serving(running, 0.5, slow_ms=25)


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
