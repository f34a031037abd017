"""A model server in one Python process: four threads parse requests in pure Python, the main thread runs the model; texts get longer.

Truth: the GPU starves (input-bound) because the four request threads compute by turns, for there is one GIL (gil-contention): a request
takes 110 ms of Python, the GPU 30 ms, and four threads parse no more than one does. Eight clients always have a request under way. The
victim is the main thread of `gunicorn`, to blame are its own threads. Lost: 0.73 of the GPU's time. Parsing in processes, or in a library
that lets go of the GIL, would fix it; more threads or more clients would not.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer

_THREADS, _CLIENTS = 4, 8
_REQUEST_BYTES, _ANSWER_BYTES = 8192, 512
_CPU_MS, _SLOW_CPU_MS, _GPU_MS = 2.0, 110.0, 30.0


def train(_trainer: Trainer) -> None:
    program.become(serve)


def serve() -> None:
    """The clients are a child; each has a connection, and each thread serves two of those."""
    pairs = [socket.socketpair() for _ in range(_CLIENTS)]
    program.forked("locust", lambda: _ask_all([theirs for _, theirs in pairs]))
    parsed: queue.Queue[socket.socket] = queue.Queue()
    arrived: queue.Queue[socket.socket] = queue.Queue()
    for ours, _ in pairs:
        threading.Thread(target=_read, args=(ours, arrived), daemon=True).start()
    for number in range(_THREADS):
        threading.Thread(target=_parse, args=(arrived, parsed), name=f"parse-{number}", daemon=True).start()
    program.called("gunicorn")
    job = program.Job()
    while True:
        client = parsed.get()
        job.compute(_GPU_MS, kernels=2)
        client.sendall(bytes(_ANSWER_BYTES))
        job.step()


def _read(client: socket.socket, arrived: queue.Queue[socket.socket]) -> None:
    while program.receive(client, _REQUEST_BYTES):
        arrived.put(client)


def _parse(arrived: queue.Queue[socket.socket], parsed: queue.Queue[socket.socket]) -> None:
    while True:
        client = arrived.get()
        program.burn(_SLOW_CPU_MS if program.raised("slow") else _CPU_MS)
        parsed.put(client)


def _ask_all(servers: list[socket.socket]) -> None:
    threads = [threading.Thread(target=_ask, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _ask(server: socket.socket) -> None:
    while True:
        server.sendall(bytes(_REQUEST_BYTES))
        program.receive(server, _ANSWER_BYTES)


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train, native.flag)
