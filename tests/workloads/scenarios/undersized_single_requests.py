"""An inference server without batching: asyncio takes requests from a UNIX socket, and the model answers one image at a time.

Six clients always have a request in flight, so the GPU is at work nearly without a gap. The kernels of a single small image take two
milliseconds each and have eleven blocks of the 132 that the device holds: a batch of eight would take hardly longer. Utilization is high
and the work is too small for the GPU.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CLIENTS = 6
_IMAGE_BYTES, _ANSWER_BYTES = 32 << 10, 4000
_KERNELS, _KERNEL_MS, _BLOCKS = 5, 2.0, 11

Reply = Callable[[bytes], object]


def train(trainer: Trainer) -> None:
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "model.sock"
    requests: queue.Queue[Reply] = queue.Queue()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    for _ in range(_CLIENTS):
        multiprocessing.get_context("fork").Process(target=_ask, args=(path,), daemon=True).start()
    Thread(target=asyncio.run, args=(_serve(listener, requests),), daemon=True).start()

    def infer(reply: object) -> None:
        trainer.gpu.copy_in(4 * _IMAGE_BYTES)
        for _ in range(_KERNELS):
            trainer.gpu.launch(_KERNEL_MS, _BLOCKS)
        trainer.gpu.copy_out(_ANSWER_BYTES)
        reply(bytes(_ANSWER_BYTES))  # type: ignore[operator]

    trainer.fit(_taken(requests), infer)


def _taken(requests: queue.Queue[Reply]) -> Iterator[Reply]:
    while True:
        yield requests.get()


async def _serve(listener: socket.socket, requests: queue.Queue[Reply]) -> None:
    loop = asyncio.get_running_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(_IMAGE_BYTES):
            requests.put(lambda answer: loop.call_soon_threadsafe(writer.write, answer))

    server = await asyncio.start_unix_server(connected, sock=listener)
    await server.serve_forever()


def _ask(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))
        while True:
            server.sendall(bytes(_IMAGE_BYTES))
            if not server.recv(_ANSWER_BYTES, socket.MSG_WAITALL):
                return


SCENARIO = Scenario(Label("busy-not-working", "undersized-work"), train)
