"""An LLM engine behind an HTTP server with an event loop, which turns prompts into input itself, until clients begin to send pictures.

Truth: the GPU has nothing to do most of the time (input-bound) because the server takes 75 ms of one core to unpack and scale the picture
of a request, in its event loop, and the engine 24 ms for the request (slow-transform). The engine `llm-engine` sleeps in recv(2) at the
server's connection, the four clients in epoll(7) at theirs; a CPU idles. The server does its own work: nobody is to blame. The victim is
`llm-engine`. Lost: 0.67 of the GPU's time. Pictures scaled in more processes would fix it; more clients or a faster engine would not.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import zlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_CLIENTS, _TOKENS, _ANSWER = 4, 16 << 10, 256
_TEXT_CPU_MS, _PICTURE_CPU_MS, _GPU_MS = 4.0, 75.0, 24.0
_AHEAD = 2  # requests that the engine has been given before the first of them is answered
_PICTURE = zlib.compress(os.urandom(8192) * 32, 1)
_HELLO = b"ENGINE\r\n"


def train(_trainer: Trainer) -> None:
    program.become(engine)


def engine() -> None:
    """Work on what the server has prepared."""
    job, server = program.Job(), program.service()
    program.called("llm-engine")
    server.sendall(_HELLO)
    while True:
        program.receive(server, _TOKENS)
        job.compute(_GPU_MS, kernels=12, bytes_in=_TOKENS)
        server.sendall(bytes(_ANSWER))
        job.step()


class Server:
    """POST /v1/chat/completions, and the engine, on one port."""

    def __init__(self) -> None:
        self._prepared: asyncio.Queue[asyncio.Future[bytes]] = asyncio.Queue()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A client's requests, one after another, or the engine's life."""
        if await reader.readline() == _HELLO:
            return await self._engine(reader, writer)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
            _prepare(await reader.readexactly(length))
            answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            await self._prepared.put(answer)
            body = await answer
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readline()

    async def _engine(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        room, under_way = asyncio.Semaphore(_AHEAD), deque[asyncio.Future[bytes]]()

        async def answers() -> None:
            while True:
                body = await reader.readexactly(_ANSWER)
                under_way.popleft().set_result(body)
                room.release()

        reading = asyncio.create_task(answers())
        while not reading.done():
            await room.acquire()
            under_way.append(await self._prepared.get())
            writer.write(bytes(_TOKENS))


def _prepare(body: bytes) -> None:
    until = time.thread_time() + (_PICTURE_CPU_MS if body.startswith(b"P") else _TEXT_CPU_MS) / 1e3
    while time.thread_time() < until:
        zlib.decompress(_PICTURE)


def serve() -> None:
    """The server, and its clients beside it."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    program.forked("k6", lambda: asyncio.run(_ask_all(port)))
    program.called("api_server")
    print(port, flush=True)
    asyncio.run(_serve(listener))


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(Server().connected, sock=listener, limit=1 << 20)
    await server.serve_forever()


async def _ask_all(port: int) -> None:
    await asyncio.gather(*(_ask(port) for _ in range(_CLIENTS)))


async def _ask(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        body = (b"P" if program.raised("slow") else b"T") * 4096
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: gpu1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(_ANSWER)


prepare = partial(program.serving, function=serve)
SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, native.flag, prepare)
