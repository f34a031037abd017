"""An object store that answers each request after a while, and a client of it with a limited pool of connections, as aiohttp's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tests.workloads.runner import Running

_SAMPLE_BYTES = 50_000


class Client:
    """Connections that are kept; who wants a sample waits for one of them to be idle."""

    def __init__(self) -> None:
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def connect(self, connections: int) -> None:
        """Open so many."""
        for _ in range(connections):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"])))

    async def batch(self, samples: int) -> list[bytes]:
        """So many samples, all requested at once."""
        return await asyncio.gather(*(self._get() for _ in range(samples)))

    async def _get(self) -> bytes:
        reader, writer = await self._idle.get()
        writer.write(b"?")
        sample = await reader.readexactly(_SAMPLE_BYTES)
        self._idle.put_nowait((reader, writer))
        return sample


def serve(running: Running, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
    """A server in a thread of the runner, at a port that the workload's environment tells; it listens when this returns."""
    listening = Event()

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        running.env["GPUTOP_STORE_PORT"] = str(server.sockets[0].getsockname()[1])
        listening.set()
        await server.serve_forever()

    Thread(target=asyncio.run, args=(listen(),), daemon=True).start()
    listening.wait()


@contextmanager
def serving(running: Running, latency_ms: float, slow_ms: float = 0) -> Iterator[None]:
    """A store, in a thread of the runner, that thinks for ``latency_ms``, or ``slow_ms`` once it is slow."""
    slow_flag, sample = running.folder / "slow", os.urandom(_SAMPLE_BYTES)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # a client may leave in the middle
            while await reader.read(1):
                await asyncio.sleep((slow_ms if slow_flag.exists() else latency_ms) / 1e3)
                writer.write(sample)
                await writer.drain()
        writer.close()

    serve(running, answer)
    yield
