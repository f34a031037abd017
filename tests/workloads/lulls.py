"""A broker on this host that holds a queue of jobs, producers that push into it in bursts, and a consumer with a GPU that pops.

Messages are lines: ``push``, ``pop``; a job is raw bytes. A producer makes ``jobs`` in ``cpu_ms`` of CPU time each, then rests.
"""

from __future__ import annotations

import queue
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads import program
from tests.workloads.runner import Running

_JOB_BYTES = 64 << 10
_MOST_QUEUED = 4  # jobs that a producer may have pushed before one of them is popped


@contextmanager
def serving(running: Running, producers: int, jobs: int, cpu_ms: float, pause_s: float) -> Iterator[None]:
    """The broker and its producers."""
    with program.serving(running, _main, producers, jobs, cpu_ms, pause_s):
        yield


def consume(gpu_ms: float, way: str) -> None:
    """Go on as the consumer: the main thread reads a job (``reads``), polls for it (``polls``), or another thread reads ahead
    (``thread``)."""
    program.become(_consume, gpu_ms, way)


def _consume(gpu_ms: str, way: str) -> None:
    job, broker, ready = program.Job(), program.service(), queue.Queue[bytes](1)

    def pop() -> bytes:
        broker.sendall(b"pop\n")
        if way == "polls":
            select.select([broker], [], [])
        return program.receive(broker, _JOB_BYTES)

    def read_ahead() -> None:
        while True:
            ready.put(pop())

    if way == "thread":
        threading.Thread(target=read_ahead, name="consumer-io", daemon=True).start()
    while True:
        ready.get() if way == "thread" else pop()
        job.compute(float(gpu_ms), bytes_in=_JOB_BYTES)
        job.step()


def _main(producers: str, jobs: str, cpu_ms: str, pause_s: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    for _ in range(int(producers)):
        program.forked("producer", lambda: _produce(port, int(jobs), float(cpu_ms), float(pause_s)))
    program.called("broker")
    print(port, flush=True)
    chosen = selectors.DefaultSelector()
    chosen.register(listener, selectors.EVENT_READ)
    pushed, popping = deque[socket.socket](), deque[socket.socket]()
    while True:
        for key, _ in chosen.select():
            peer = key.fileobj
            assert isinstance(peer, socket.socket)
            if peer is listener:
                chosen.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            if not (heard := peer.recv(4096)):
                chosen.unregister(peer)
            pushed.extend([peer] * heard.count(b"push"))
            popping.extend([peer] * heard.count(b"pop"))
        while pushed and popping:
            popping.popleft().sendall(bytes(_JOB_BYTES))
            pushed.popleft().sendall(b"+")


def _produce(port: int, jobs: int, cpu_ms: float, pause_s: float) -> None:
    broker, queued = socket.create_connection(("127.0.0.1", port)), 0
    while True:
        for _ in range(jobs):
            program.burn(cpu_ms)
            broker.sendall(b"push\n")
            queued += 1
            while queued >= _MOST_QUEUED:
                queued -= len(broker.recv(_MOST_QUEUED))
        time.sleep(pause_s)
