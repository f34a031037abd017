"""Workers await rollouts which an asyncio task of theirs receives; game rooms restart, the task dies unseen, and they await for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads import async_store
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_ROOMS, _STAYING = 3, b"\0"
_FRAMES, _FRAME_BYTES, _FRAME_S = 4, 84 * 84, 0.006
_ROLLOUTS = 4


class Client:
    """Subscribes to one room; `rollout` is what came next."""

    async def subscribe(self, room: int) -> None:
        self._rollouts: asyncio.Queue[bytes] = asyncio.Queue(2)
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"]))
        self._writer.write(bytes([room]))
        self._receiver = asyncio.create_task(self._receive())

    async def rollout(self) -> bytes:
        return await self._rollouts.get()

    async def _receive(self) -> None:
        while True:
            await self._rollouts.put(await self._reader.readexactly(_FRAMES * _FRAME_BYTES))


class Rollouts(IterableDataset[torch.Tensor]):
    """Those of the worker's own room, without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        client = Client()
        with asyncio.Runner() as events:
            events.run(client.subscribe(worker.id))
            while True:
                frames = events.run(client.rollout())
                yield torch.frombuffer(bytearray(frames), dtype=torch.uint8).reshape(_FRAMES, 84, 84)


def train(trainer: Trainer) -> None:
    rollouts = loader(Rollouts(), workers=_ROOMS, batch=_ROLLOUTS, in_order=False)
    trainer.fit(rollouts, trainer.compute(45, kernels=6))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    restarting = running.folder / "restarting"

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            room = await reader.readexactly(1)
            while room == _STAYING or not restarting.exists():
                await asyncio.sleep(_FRAME_S)
                writer.write(bytes(_FRAME_BYTES))
                await writer.drain()
        writer.close()

    async_store.serve(running, play)
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "restarting").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
