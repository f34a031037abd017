"""Workers that fetch their batch with asyncio, all samples at once, from a store that answers slowly: they wait in epoll."""

from __future__ import annotations

import asyncio
import os

import torch

from tests.workloads import store, web
from tests.workloads.data import Images, decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_PARTS = 6


async def fetch() -> bytes:
    """One sample, which the store keeps in `_PARTS` parts, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"]))
    sample = b""
    for _ in range(_PARTS):
        writer.write(b"?")
        sample += await reader.readexactly(store.SAMPLE_BYTES)
    writer.close()
    return sample


class Gathered(Images):
    """Whole batches, as `__getitems__` asks for them."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        asyncio.run(self._gather(len(indices)))
        return [decode(self.cpu_ms) for _ in indices]

    async def _gather(self, count: int) -> None:
        await asyncio.gather(*(fetch() for _ in range(count)))


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Gathered(0.2), workers=2, batch=4), trainer.compute(25))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, store.serving)
