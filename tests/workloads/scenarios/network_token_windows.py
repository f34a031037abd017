"""Windows of tokens are read from an object store by ranged requests, each over a connection of its own, one after the other.

Three processes of a fork server do that and send batches through a queue. At first the store sends the first byte after 4 ms; from
the onset on it takes 60 ms, as one in another region does. Nobody computes and no disk is read: the GPU waits for readers, and
these for answers of the store, so the network is the cause.
"""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

from tests.workloads import async_store
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_READERS, _WINDOWS, _WINDOW_BYTES = 3, 4, 2 * 4096
_NEAR_S, _FAR_S = 0.004, 0.06


def read(reader: int, batches: Queue[bytes]) -> None:
    """Batch after batch, every n-th window of the corpus."""
    at = reader * _WINDOW_BYTES
    while True:
        batch = b""
        for _ in range(_WINDOWS):
            store = http.client.HTTPConnection("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"]))
            store.request("GET", "/corpus/tokens.bin", headers={"Range": f"bytes={at}-{at + _WINDOW_BYTES - 1}"})
            batch += store.getresponse().read()
            store.close()
            at += _READERS * _WINDOW_BYTES
        batches.put(batch)


def train(trainer: Trainer) -> None:
    forkserver = get_context("forkserver")
    batches: Queue[bytes] = forkserver.Queue(6)
    for reader in range(_READERS):
        forkserver.Process(target=read, args=(reader, batches), daemon=True).start()
    trainer.fit(iter(batches.get, None), trainer.compute(30))


@contextmanager
def bucket(running: Running) -> Iterator[None]:
    far = running.folder / "far"
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Length: {_WINDOW_BYTES}\r\nConnection: close\r\n\r\n".encode()
    window = os.urandom(_WINDOW_BYTES)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # a client may leave in the middle
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(_FAR_S if far.exists() else _NEAR_S)
            writer.write(head + window)
            await writer.drain()
        writer.close()

    async_store.serve(running, answer)
    yield


@contextmanager
def fail_over(running: Running) -> Iterator[None]:
    Path(running.folder / "far").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "network-io"), train, fail_over, bucket)
