"""A chat model as SGLang lays it out: an HTTP server whose child processes are the scheduler, which has the GPU, and the detokenizer.

The server is the process that the runner started. It takes prompts from clients over loopback and passes them to the scheduler; that has
the GPU make one token for each running request a step, and sends all to the detokenizer, which makes text for the server, which streams it.
The detokenizer takes CPU_MS of Python for a step's tokens, SLOW_CPU_MS once the flag `slow` is raised.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from tests.workloads import program
from tests.workloads.runner import Running

DETOKENIZER = "sglang::detok"
_PROMPT, _CHUNK, _MOST = 2048, 192, 64
_ROW = struct.Struct("<Ii")
_ROW_BYTES = 1024
"""Of a token between scheduler and detokenizer, with its alternatives' probabilities."""
_ROOM_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Chat:
    """What is asked of the model: ``clients`` that read ``tokens`` each and think for about ``think_s`` before they ask again."""

    step_ms: float
    clients: int
    tokens: int
    think_s: float = 0.0
    cpu_ms: float = 1.0
    slow_cpu_ms: float = 0.0


def serve(chat: Chat) -> NoReturn:
    """Go on as the HTTP server, without torch."""
    program.become(_serve, *(getattr(chat, name) for name in chat.__slots__))


@contextmanager
def asked(running: Running) -> Iterator[None]:
    """A port for the server is chosen before it and its clients start."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        running.env["GPUTOP_SERVICE_PORT"] = str(free.getsockname()[1])
    yield


def _serve(*numbers: str) -> None:
    chat = Chat(*(float(text) if "." in text else int(text) for text in numbers))  # type: ignore[arg-type]
    requests, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    tokens, into = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    texts, out = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    into.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
    port = int(os.environ["GPUTOP_SERVICE_PORT"])
    program.forked("sglang::schedul", lambda: _schedule(requests, into, chat))
    program.forked(DETOKENIZER, lambda: _detokenize(tokens, out, chat))
    listener = socket.create_server(("127.0.0.1", port), backlog=chat.clients)
    program.forked("bench_serving", lambda: asyncio.run(_ask(port, chat)))
    program.called("sglang::http")
    asyncio.run(_answer(listener, ours, texts))


def _schedule(requests: socket.socket, into: socket.socket, chat: Chat) -> None:
    """Continuous batching: whoever has asked is in the next step."""
    job = program.Job()
    running: dict[int, int] = {}
    while True:
        while not running or _readable(requests):
            (request,) = struct.unpack("<I", requests.recv(4))
            running[request] = chat.tokens
        job.compute(chat.step_ms)
        rows = []
        for request in list(running):
            running[request] -= 1
            rows.append(_ROW.pack(request, running[request]).ljust(_ROW_BYTES, b"p"))
            if not running[request]:
                del running[request]
        into.send(b"".join(rows))
        job.step()


def _readable(source: socket.socket) -> bool:
    try:
        return bool(source.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def _detokenize(tokens: socket.socket, out: socket.socket, chat: Chat) -> None:
    while rows := tokens.recv(_MOST * _ROW_BYTES):
        program.burn(chat.slow_cpu_ms if program.raised("slow") else chat.cpu_ms)
        out.send(b"".join(rows[at : at + _ROW.size] for at in range(0, len(rows), _ROW_BYTES)))


async def _answer(listener: socket.socket, scheduler: socket.socket, texts: socket.socket) -> None:
    """Text goes to whom it belongs; what a client does not take yet is kept for it."""
    clients: dict[int, asyncio.StreamWriter] = {}

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(_PROMPT):
            request = writer.get_extra_info("socket").fileno()
            clients[request] = writer
            scheduler.send(struct.pack("<I", request))

    def stream() -> None:
        rows = texts.recv(_MOST * _ROW.size)
        if not rows:
            os._exit(0)
        for request, left in _ROW.iter_unpack(rows):
            clients[request].write(struct.pack("<i", left).ljust(_CHUNK, b" "))

    asyncio.get_running_loop().add_reader(texts, stream)
    await (await asyncio.start_server(accept, sock=listener)).serve_forever()


async def _ask(port: int, chat: Chat) -> None:
    await asyncio.gather(*(_client(port, number, chat) for number in range(chat.clients)))


async def _client(port: int, number: int, chat: Chat) -> None:
    """Client 0 is on a phone with a bad line once the flag `far` is raised: it reads a chunk now and then."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * _CHUNK)
    while True:
        writer.write(os.urandom(_PROMPT))
        left = 1
        while left:
            (left,) = struct.unpack_from("<i", await reader.readexactly(_CHUNK))
            if number == 0 and program.raised("far"):
                await asyncio.sleep(0.7)
        if chat.think_s:
            await asyncio.sleep(random.uniform(0.7, 1.3) * chat.think_s)
