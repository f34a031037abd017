"""An inference engine with its API server, shaped like vLLM's: real HTTP, streamed answers, continuous batching, and its page of metrics.

The engine is the trainer's process, `VLLM::EngineCore`; its child `VLLM::APIServer` takes requests over HTTP, makes tokens of them, hands
them on over a UNIX socket, streams the answers, and serves `/metrics` with vLLM's names. Clients are a session of their own:
`python -m tests.workloads.served clients FOLDER COUNT PROMPT ANSWER LONG_ANSWER`. Flags in the folder: `slow`, what the scenario makes slow
is so; `quiet`, clients ask no more; `unread`, clients hardly read.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_FIRST_S = (0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_READS_S = 0.4  # s between two reads, of `_READ_BYTES`, of a client that hardly reads
_ROOM_BYTES, _READ_BYTES = 1 << 17, 1 << 15  # of a socket that fills soon: less than two packets over loopback would stand still
_WORDS = "The committee's report doesn't say which of the 42 proposals it'll take up first; they've been tabled. "


@contextmanager
def asked(running: Running, clients: int, prompt: int = 200, answer: int = 30, long_answer: int = 0) -> Iterator[None]:
    """So many clients, each of which asks again when it has its answer, of ``long_answer`` tokens once it is slow."""
    command = [sys.executable, "-m", "tests.workloads.served", "clients", str(running.folder)]
    with running.child([*command, *map(str, (clients, prompt, answer, long_answer or answer))]):
        yield


def engine(
    trainer: Trainer, *, pass_ms: float, tokenize_ms: tuple[float, float] = (1.0, 1.0), schedule_ms: tuple[float, float] = (0.5, 0.5),
    kv_tokens: int = 1 << 20, most: int = 64, blocks: int = 0, load: Callable[[], None] = lambda: None, text_bytes: int = 0,
) -> None:  # fmt: skip
    """Serve until the time is over. ``pass_ms``: of a forward pass on the GPU; the pairs: CPU time of the API server for a prompt, and of
    the engine between two passes, before and once it is slow; ``kv_tokens``: room for keys and values; ``most``: requests at once;
    ``blocks``: of a kernel, 0 for as many as the GPU has SMs; ``load``: of the weights, before it listens; ``text_bytes``: of a token and
    its alternatives, which the server then writes in order and waits until each is taken; 0: a word, kept for clients that read later."""
    from tests.workloads.gpu import SMS
    from tests.workloads.loop import Over

    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    _called("VLLM::EngineCore")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{folder}/engine.sock")
        listening.listen()
        command = [sys.executable, "-m", "tests.workloads.served", "server", str(folder), *map(str, (*tokenize_ms, text_bytes))]
        server = subprocess.Popen(command)
        line, _ = listening.accept()
        if text_bytes:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    load()
    line.sendall(b"{}\n")
    requests: queue.Queue[dict[str, int]] = queue.Queue()
    threading.Thread(target=lambda: [requests.put(json.loads(text)) for text in line.makefile()], daemon=True).start()
    forward = trainer.compute(pass_ms, blocks=blocks or SMS, kernels=8, bytes_in=1 << 14, pinned=True)
    batch = Batch(kv_tokens, most)
    try:
        while True:
            batch.take(requests)
            forward(None)
            _burn(schedule_ms[(folder / "slow").exists()])
            line.sendall(json.dumps(batch.step()).encode() + b"\n")
            trainer.tick()
    except Over:
        return
    finally:
        server.kill()


class Batch:
    """Continuous batching, with room for so many tokens' keys and values."""

    def __init__(self, kv_tokens: int, most: int) -> None:
        self._room, self._most = kv_tokens, most
        self._waiting: deque[dict[str, int]] = deque()
        self._running: list[dict[str, int]] = []
        self._preemptions = self._steps = self._tokens = 0

    def take(self, requests: queue.Queue[dict[str, int]]) -> None:
        """Take new requests, all that wait for one where there are none, and let those run for which there is room."""
        while not self._running and not self._waiting:
            self._waiting.append(requests.get())
        with suppress(queue.Empty):
            while True:
                self._waiting.append(requests.get_nowait())
        while self._waiting and len(self._running) < self._most and self._used + self._waiting[0]["prompt"] <= self._room:
            self._running.append(self._waiting.popleft() | {"made": 0})
            self._tokens += self._running[-1]["prompt"]

    @property
    def running(self) -> int:
        """Requests in the next pass."""
        return len(self._running)

    @property
    def _used(self) -> int:
        return sum(one["prompt"] + one["made"] for one in self._running)

    def step(self) -> dict[str, Any]:
        """A token for each request, and what the server's metrics need."""
        while len(self._running) > 1 and self._used + len(self._running) > self._room:
            self._waiting.appendleft(self._running.pop())
            self._preemptions += 1
        for one in self._running:
            one["made"] += 1
        self._steps, self._tokens = self._steps + 1, self._tokens + len(self._running)
        done = [one["id"] for one in self._running if one["made"] >= one["answer"]]
        told = {"tokens": [one["id"] for one in self._running], "done": done}
        self._running = [one for one in self._running if one["made"] < one["answer"]]
        counts = {"kv": self._used / self._room, "preemptions": self._preemptions, "steps": self._steps, "step_tokens": self._tokens}
        return told | counts | {"running": len(self._running), "waiting": len(self._waiting)}


async def request_of(reader: asyncio.StreamReader) -> tuple[str, dict[str, Any]]:
    """(method and path of a request, its body in JSON); of a GET without a body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    what = " ".join(head.split(" ", 2)[:2])
    if what.startswith("GET "):
        return what, {}
    length = next(int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length"))
    return what, json.loads(await reader.readexactly(length))


def page_of(text: str) -> bytes:
    """An answer that is known whole; the connection ends with it."""
    body = text.encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body


class _Server:
    """The API server."""

    def __init__(self, folder: Path, tokenize_ms: tuple[float, float], text_bytes: int) -> None:
        self._folder, self._tokenize_ms, self._text_bytes = folder, tokenize_ms, text_bytes
        self._answers: dict[int, asyncio.Queue[bool]] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._engine: asyncio.StreamWriter | None = None
        self._last: dict[str, Any] = {}
        self._prompt_tokens = self._generated = self._finished = self._number = 0
        self._first, self._between = [0] * (len(_FIRST_S) + 1), [0] * (len(_TOKEN_S) + 1)

    async def run(self) -> None:
        """Serve for ever."""
        room = 1 << 11 if self._text_bytes else 1 << 20
        reader, self._engine = await asyncio.open_unix_connection(f"{self._folder}/engine.sock", limit=room)
        await reader.readline()  # the engine is ready
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._folder / "port"
        port.with_suffix(".part").write_text(str(server.sockets[0].getsockname()[1]))
        port.with_suffix(".part").rename(port)
        while line := await reader.readline():
            self._last = json.loads(line)
            self._generated += len(self._last["tokens"])
            done = {*self._last["done"]}
            for number in self._last["tokens"]:
                if number in self._answers:
                    self._answers[number].put_nowait(number in done)
                if self._text_bytes and number in self._writers:
                    with suppress(ConnectionError):
                        self._writers[number].write(b"data: " + b"x" * self._text_bytes + b"\n\n")
                        await self._writers[number].drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            what, body = await request_of(reader)
            if what == "GET /metrics":
                writer.write(page_of(self._page()))
            else:
                await self._answer(body, writer)
            await writer.drain()
            writer.close()

    async def _answer(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Make tokens of the prompt on this one thread, as a server's event loop does, and stream the answer's."""
        came_s = time.monotonic()
        _burn(self._tokenize_ms[(self._folder / "slow").exists()])
        self._number += 1
        number, self._answers[self._number] = self._number, asyncio.Queue()
        self._prompt_tokens += asked["prompt_tokens"]
        assert self._engine is not None
        self._engine.write(json.dumps({"id": number, "prompt": asked["prompt_tokens"], "answer": asked["max_tokens"]}).encode() + b"\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        if self._text_bytes:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
            writer.transport.set_write_buffer_limits(high=_ROOM_BYTES)
            self._writers[number] = writer
        last_s, is_done = 0.0, False
        while not is_done:
            is_done = await self._answers[number].get()
            now_s = time.monotonic()
            if last_s:
                self._between[bisect_left(_TOKEN_S, now_s - last_s)] += 1
            else:
                self._first[bisect_left(_FIRST_S, now_s - came_s)] += 1
            last_s = now_s
            if not self._text_bytes:
                writer.write(b'data: {"choices": [{"text": " word"}]}\n\n')
        del self._answers[number]
        self._writers.pop(number, None)
        self._finished += 1

    def _page(self) -> str:
        of, last = 'engine="0",model_name="tiny/llama"', self._last
        plain = {
            "num_requests_running": last.get("running", 0), "num_requests_waiting": last.get("waiting", 0),
            "kv_cache_usage_perc": last.get("kv", 0.0), "num_preemptions_total": last.get("preemptions", 0),
            "prompt_tokens_total": self._prompt_tokens, "generation_tokens_total": self._generated, "request_success_total": self._finished,
            "iteration_tokens_total_count": last.get("steps", 0), "iteration_tokens_total_sum": last.get("step_tokens", 0),
        }  # fmt: skip
        lines = [f"vllm:{name}{{{of}}} {value}" for name, value in plain.items()]
        first, between = ("time_to_first_token", _FIRST_S, self._first), ("inter_token_latency", _TOKEN_S, self._between)
        for name, bounds, counts in (first, between):
            below = 0
            for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
                below += count
                lines.append(f'vllm:{name}_seconds_bucket{{{of},le="{bound}"}} {below}')
        return "\n".join([*lines, ""])


async def _ask_for_ever(folder: Path, number: int, prompt: int, answer: int, long_answer: int) -> None:
    draw = random.Random(number)
    while not (folder / "port").exists():
        await asyncio.sleep(0.05)
    port = int((folder / "port").read_text())
    while True:
        if (folder / "quiet").exists():
            await asyncio.sleep(0.1)
            continue
        with suppress(ConnectionError):
            line = socket.socket()
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM_BYTES)
            line.setblocking(False)
            await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=line, limit=_READ_BYTES)
            tokens = long_answer if (folder / "slow").exists() else answer
            body = {"prompt": _WORDS * 4, "prompt_tokens": prompt, "max_tokens": draw.randint(tokens // 2, tokens)}
            text = json.dumps(body).encode()
            writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            while await reader.read(_READ_BYTES):
                if (folder / "unread").exists():
                    await asyncio.sleep(_READS_S)
            writer.close()


async def _clients(folder: Path, count: int, *lengths: int) -> None:
    await asyncio.gather(*(_ask_for_ever(folder, number, *lengths) for number in range(count)))


def _burn(ms: float) -> None:
    """Compute for so long."""
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        sum(range(200))


def _called(name: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _main(what: str, folder: Path, *numbers: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if what == "server":
        _called("VLLM::APIServer")
        asyncio.run(_Server(folder, (float(numbers[0]), float(numbers[1])), int(numbers[2])).run())
    else:
        asyncio.run(_clients(folder, *map(int, numbers)))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
