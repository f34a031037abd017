"""Inference servers as they are deployed, put together of their processes: what takes requests, what makes tokens and text, the engine.

A scenario starts a command (`program.become_command`), whose processes are forked and joined by socket pairs before any of them has
threads: `Front` serves HTTP and the page of metrics, `core` is the engine's loop with continuous batching, `detokenize` and `tokenize` are
helper processes. Lines of JSON go between them, handed over without waiting, as ZeroMQ does. Flag in the folder: `slow`, the scenario's
trouble has begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.workloads import asking, program, tokens
from tests.workloads.gpu import SMS
from tests.workloads.pages import Counts, Page
from tests.workloads.served import Batch, page_of, request_of

Encode = Callable[[str], Awaitable[Sequence[int]]]
Requests = queue.Queue[dict[str, int]]
_LINE = 1 << 24
"""Bytes of a line at most."""


def port() -> int:
    """At which the server is to listen, in its own process."""
    return int(os.environ[asking.PORT])


def started(work: Callable[[], object], *title: str, name: str = "") -> int:
    """The pid of a child with that title, which does ``work``."""

    def titled() -> None:
        program.titled(*title, name=name)
        work()

    return program.forked(title[0], titled)


@dataclass(frozen=True, slots=True)
class Plan:
    """Of an engine: how long a pass is, CPU time between two of them before and in the trouble, tokens' keys and values for which there
    is room, requests at once, blocks of a kernel for each of these, whether it spins while there are none, and its GPU."""

    pass_ms: float
    schedule_ms: tuple[float, float] = (0.5, 0.5)
    kv_tokens: int = 1 << 20
    most: int = 64
    blocks_each: int = SMS
    spins: bool = False
    device: int = 0


class Pushed:
    """A socket that takes lines without a wait: a thread sends them."""

    def __init__(self, out: socket.socket) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._send, args=(out,), daemon=True).start()

    def push(self, what: object) -> None:
        self._lines.put(json.dumps(what).encode() + b"\n")

    def _send(self, out: socket.socket) -> None:
        with suppress(ConnectionError):
            while True:
                out.sendall(self._lines.get())


def scheduled(requests: socket.socket, told: socket.socket, plan: Plan) -> NoReturn:
    """An engine with one GPU, in a process of its own: SGLang's scheduler, vLLM's EngineCore, a shard of TGI."""
    job = program.Job(plan.device)

    def run(blocks: int) -> None:
        job.compute(plan.pass_ms, blocks=blocks)
        job.step()

    core(received(requests), Pushed(told).push, plan, run)


def received(source: socket.socket) -> Requests:
    """Requests as they come; the process ends with who sends them."""
    requests = Requests()

    def read() -> None:
        for line in source.makefile():
            requests.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return requests


def core(requests: Requests, tell: Callable[[dict[str, Any]], object], plan: Plan, run: Callable[[int], object]) -> NoReturn:
    """The engine's loop: requests are taken, ``run`` is a pass of so many blocks, and its tokens are told."""
    batch = Batch(plan.kv_tokens, plan.most)
    tell({})
    while True:
        while plan.spins and not batch.running and requests.empty():
            pass
        batch.take(requests)
        began_s = time.monotonic()
        run(min(SMS, plan.blocks_each * batch.running))
        pass_s = time.monotonic() - began_s
        program.burn(plan.schedule_ms[program.raised("slow")])
        tell(batch.step() | {"pass_s": pass_s})


def detokenize(told: socket.socket, texts: socket.socket, cpu_ms: tuple[float, float]) -> None:
    """Make text of tokens, ``cpu_ms`` for a pass before and in the trouble, and pass it on."""
    tokenizer, out = tokens.Slow(program.folder()), Pushed(texts)
    ids = tokenizer.encode(tokens.prose(400, random.Random(0)))
    for line in told.makefile():
        until = time.thread_time() + cpu_ms[program.raised("slow")] / 1e3
        what = json.loads(line)
        while what and time.thread_time() < until:
            what["text"] = tokenizer.decode(ids)[:8]
        out.push(what)


def tokenize(line: socket.socket) -> None:
    """A worker that makes tokens of texts, for a `Workers`."""
    tokenizer = tokens.Slow(program.folder())
    for text in line.makefile():
        line.sendall(json.dumps(tokenizer.encode(json.loads(text))).encode() + b"\n")


class Workers:
    """Processes that make tokens, each of one text after the other."""

    def __init__(self, lines: Sequence[socket.socket]) -> None:
        self._lines = lines
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def encode(self, text: str) -> Sequence[int]:
        """By whichever is free."""
        while self._lines:
            *self._lines, line = self._lines
            self._free.put_nowait(await asyncio.open_unix_connection(sock=line, limit=_LINE))
        reader, writer = await self._free.get()
        writer.write(json.dumps(text).encode() + b"\n")
        ids: list[int] = json.loads(await reader.readline())
        self._free.put_nowait((reader, writer))
        return ids


class Front:
    """What takes requests over HTTP, has tokens made of them, hands them to the engine, streams answers, and serves `/metrics`."""

    def __init__(self, page: Page, encode: Encode, model: str, metrics_port: int = 0) -> None:
        self._page, self._encode, self._counts, self._metrics_port = page, encode, Counts(model), metrics_port
        self._answers: dict[int, asyncio.Queue[tuple[bool, str]]] = {}
        self._engine: asyncio.StreamWriter | None = None
        self._numbers = iter(range(1 << 60))

    async def run(self, requests: socket.socket, texts: socket.socket | None = None) -> None:
        """Serve, once the engine is ready, until it has ended. Without ``texts`` they come where the requests go."""
        reader, self._engine = await asyncio.open_unix_connection(sock=requests, limit=_LINE)
        if texts:
            reader, _ = await asyncio.open_unix_connection(sock=texts, limit=_LINE)
        await reader.readline()
        for number in filter(None, (port(), self._metrics_port)):
            await asyncio.start_server(self._serve, "127.0.0.1", number, limit=_LINE, backlog=512)
        while line := await reader.readline():
            self._counts.last = told = json.loads(line)
            self._counts.generated += len(told["tokens"])
            done = {*told["done"]}
            for number in told["tokens"]:
                self._answers[number].put_nowait((number in done, told.get("text", " word")))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            what, body = await request_of(reader)
            if what.startswith("GET "):
                writer.write(page_of(self._page(self._counts) if what == "GET /metrics" else ""))
            else:
                await self._answer(body, writer)
            await writer.drain()
        writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        counts, came_s = self._counts, time.monotonic()
        counts.asked += 1
        ids = await self._encode(asked["prompt"])
        counts.prompt_tokens += len(ids)
        number, handed_s = next(self._numbers), time.monotonic()
        answers = self._answers[number] = asyncio.Queue()
        assert self._engine is not None
        self._engine.write(json.dumps({"id": number, "prompt": len(ids), "answer": asked["max_tokens"]}).encode() + b"\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        last_s, is_done = 0.0, False
        while not is_done:
            is_done, text = await answers.get()
            now_s = time.monotonic()
            (counts.between if last_s else counts.first).add(now_s - (last_s or came_s))
            if not last_s:
                counts.queued.add(max(0.0, now_s - handed_s - counts.of_engine("pass_s")))
            last_s = now_s
            writer.write(b"data: %s\n\n" % json.dumps({"choices": [{"index": 0, "text": text}]}).encode())
            await writer.drain()
        del self._answers[number]
        counts.finished += 1
        counts.whole.add(last_s - came_s)
        writer.write(b"data: [DONE]\n\n")


def in_loop(encode: Callable[[str], Sequence[int]]) -> Encode:
    """Tokens made on the event loop itself, which does nothing else meanwhile."""

    async def made(text: str) -> Sequence[int]:
        return encode(text)

    return made
