"""A speech server on asyncio: three callers stream their sound in real time, a chunk each 240 ms, and get words back at once.

Truth: idle, none. A chunk takes the GPU 7 ms, in a thread of the server's pool, and there are twelve a second, however fast the server is.
Between chunks the event loop sleeps in epoll at the callers' sockets. The GPU works a twelfth of the time and nothing is lost; nobody is a
victim or to blame, and only more callers would make it work.
"""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.workloads import program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_CALLERS, _CHUNK_S, _CHUNK_BYTES, _WORDS_BYTES = 3, 0.24, 7680, 64
_GPU_MS = 7.0


def train(_trainer: Trainer) -> None:
    program.become(serve)


def serve() -> None:
    """The callers are another process, which knows the server's port."""
    asyncio.run(_serve())


async def _serve() -> None:
    pool = ThreadPoolExecutor(1, thread_name_prefix="asr")
    jobs: list[program.Job] = []

    def transcribe(_sound: bytes) -> bytes:
        jobs[0].compute(_GPU_MS, bytes_in=_CHUNK_BYTES)
        jobs[0].step()
        return bytes(_WORDS_BYTES)

    async def call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while sound := await reader.readexactly(_CHUNK_BYTES):
            writer.write(await asyncio.get_running_loop().run_in_executor(pool, transcribe, sound))

    server = await asyncio.start_server(call, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    program.forked("sip_trunk", lambda: _call_all(port))
    pool.submit(lambda: jobs.append(program.Job())).result()
    await server.serve_forever()


def _call_all(port: int) -> None:
    """An event loop cannot be begun in a child that was forked within one: a thread for each caller."""
    with ThreadPoolExecutor(_CALLERS) as callers:
        list(callers.map(_call, [port] * _CALLERS, range(_CALLERS)))


def _call(port: int, number: int) -> None:
    due = time.monotonic() + number * _CHUNK_S / _CALLERS
    with socket.create_connection(("127.0.0.1", port)) as server:
        while True:
            due += _CHUNK_S
            time.sleep(max(0.0, due - time.monotonic()))
            server.sendall(bytes(_CHUNK_BYTES))
            program.receive(server, _WORDS_BYTES)


SCENARIO = Scenario(Label("idle", "none"), train)
