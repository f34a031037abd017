"""A language model behind an API server, as vLLM lays it out: clients, the server, its tokenizer, and the engine, all over loopback.

The engine is the trainer's process: a thread reads token ids from the server's socket into a queue, the main thread has the GPU read one
long prompt a step (each fills the token budget of a batch). The rest is a session of its own: `python -m tests.workloads.llm FOLDER
CPU_MS SLOW_CPU_MS CLIENTS`. Flags in the folder: `slow`, the tokenizer takes SLOW_CPU_MS for a prompt; `quiet`, clients ask no more;
`bursts`, they ask all at once and think after their last answer.
"""

from __future__ import annotations

import ctypes
import os
import queue
import random
import re
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.workloads.loop import Over, Trainer
from tests.workloads.runner import Running

_PROMPT, _IDS, _ANSWER = 16 << 10, 4 << 10, 256
_THINK_S = 0.15
_PIECES = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?\w+| ?[^\s\w]+|\s+")
_TEXT = "The committee's report doesn't say which of the 42 proposals it'll take up first; they've been tabled. " * 20


@contextmanager
def serving(running: Running, cpu_ms: float, slow_cpu_ms: float = 0.0, clients: int = 8) -> Iterator[None]:
    """The server with its tokenizer and clients, its port for engines in the workload's environment."""
    command = [sys.executable, "-m", "tests.workloads.llm", str(running.folder), str(cpu_ms), str(slow_cpu_ms), str(clients)]
    with running.child(command, stdout=-1) as server:
        assert server.stdout is not None
        running.env["GPUTOP_ENGINE_PORT"] = server.stdout.readline().strip()
        yield


def engine(trainer: Trainer, prompt_ms: float) -> None:
    """Work on one prompt after another, each ``prompt_ms`` of the GPU, until the time is over."""
    _called("VLLM::EngineCore")
    server = socket.create_connection(("127.0.0.1", int(os.environ["GPUTOP_ENGINE_PORT"])))
    inputs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(server, inputs), daemon=True).start()
    forward = trainer.compute(prompt_ms, kernels=8, bytes_in=_IDS, pinned=True)
    try:
        while True:
            forward(ids := inputs.get())
            server.sendall(ids[:8] + bytes(_ANSWER - 8))
            trainer.tick()
    except Over:
        return


def _listen(server: socket.socket, inputs: queue.Queue[bytes]) -> None:
    while True:
        inputs.put(_receive(server, _IDS))


def _serve(tokenizer: socket.socket, requests: socket.socket, engines: socket.socket) -> None:
    """Pass prompts to the tokenizer, ids to the engine, and answers to the clients; a thread sends prompts, for they may have to wait."""
    core, _ = engines.accept()
    prompts: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_send, args=(tokenizer, prompts), daemon=True).start()
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ, lambda _: selector.register(requests.accept()[0], selectors.EVENT_READ, ask))
        selector.register(tokenizer, selectors.EVENT_READ, lambda source: core.sendall(_receive(source, _IDS)))
        selector.register(core, selectors.EVENT_READ, lambda source: answer(_receive(source, _ANSWER)))

        def ask(client: socket.socket) -> None:
            prompts.put(struct.pack("<q", client.fileno()) + _receive(client, _PROMPT))
            clients[client.fileno()] = client

        def answer(tokens: bytes) -> None:
            clients[struct.unpack_from("<q", tokens)[0]].sendall(tokens)

        clients: dict[int, socket.socket] = {}
        while True:
            for key, _ in selector.select():
                key.data(key.fileobj)


def _send(tokenizer: socket.socket, prompts: queue.Queue[bytes]) -> None:
    while True:
        tokenizer.sendall(prompts.get())


def _tokenize(server: socket.socket, folder: Path, cpu_ms: float, slow_cpu_ms: float) -> None:
    vocabulary: dict[str, int] = {}
    while True:
        prompt = _receive(server, 8 + _PROMPT)
        until = time.thread_time() + (slow_cpu_ms if (folder / "slow").exists() else cpu_ms) / 1e3
        while time.thread_time() < until:
            ids = [vocabulary.setdefault(piece, len(vocabulary)) for piece in _PIECES.findall(_TEXT)]
        server.sendall(prompt[:8] + struct.pack(f"<{len(ids)}H", *ids)[: _IDS - 8].ljust(_IDS - 8, b"\0"))


def _ask(port: int, folder: Path, clients: int) -> None:
    """That many clients, each of which asks again when it has its answer."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(os.urandom(_PROMPT))
        waiting: list[socket.socket] = []
        while True:
            for key, _ in selector.select(0.05):
                waiting.append(key.fileobj)  # type: ignore[arg-type]
                _receive(waiting[-1], _ANSWER)
            if (folder / "quiet").exists() or ((folder / "bursts").exists() and len(waiting) < clients):
                continue
            if (folder / "bursts").exists():
                time.sleep(random.uniform(0, _THINK_S))
            while waiting:
                waiting.pop().sendall(os.urandom(_PROMPT))


def _receive(source: socket.socket, count: int) -> bytes:
    if len(message := source.recv(count, socket.MSG_WAITALL)) == count:
        return message
    raise ConnectionError("the other side has left")


def _called(name: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode())


def _main(folder: Path, cpu_ms: float, slow_cpu_ms: float, clients: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    ours, theirs = socket.socketpair()
    requests, engines = socket.create_server(("127.0.0.1", 0), backlog=clients), socket.create_server(("127.0.0.1", 0))
    for name, work in {
        "VLLM::Tokenizer": lambda: _tokenize(theirs, folder, cpu_ms, slow_cpu_ms),
        "vllm_bench": lambda: _ask(requests.getsockname()[1], folder, clients),
    }.items():
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            _called(name)
            with suppress(ConnectionError):  # the server leaves first
                work()
            os._exit(0)
    _called("VLLM::APIServer")
    print(engines.getsockname()[1], flush=True)
    with suppress(ConnectionError):  # the engine leaves first
        _serve(ours, requests, engines)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
