"""A task graph as Dask runs it: a scheduler, workers of which one has the GPU, and a client, all of them processes that talk over loopback.

The client submits rounds of partitions to the scheduler; a CPU worker makes a partition, the scheduler tells the GPU worker where it lies,
and that fetches it from the CPU worker itself and computes. Messages are lines; a partition is fetched as raw bytes. The GPU worker is
the trainer's process. Once the flag `lost` is raised, CPU worker 0 waits for a peer that never answers.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from tests.workloads import program
from tests.workloads.runner import Running

_PARTITION_BYTES = 256 << 10
_AHEAD = 3
"""Partitions that the scheduler has made before they are computed."""


@contextmanager
def cluster(running: Running, workers: int, cpu_ms: float, round_size: int, pause_s: float) -> Iterator[None]:
    """Scheduler, so many CPU workers, and a client that submits a round of partitions, and the next one ``pause_s`` after its end."""
    with program.serving(running, _main, workers, cpu_ms, round_size, pause_s):
        yield


def compute(gpu_ms: float) -> None:
    """Go on as the GPU worker: fetch one partition after another, and compute for ``gpu_ms``."""
    program.become(_compute, gpu_ms)


def _compute(gpu_ms: str) -> None:
    job, ready = program.Job(), queue.Queue[bytes](1)
    scheduler = program.service()
    scheduler.sendall(b"gpu\n")
    threading.Thread(target=_fetch, args=(scheduler.makefile("r"), ready), name="dask-comm", daemon=True).start()
    program.called("dask-cuda-work")
    while True:
        ready.get()
        job.compute(float(gpu_ms), bytes_in=_PARTITION_BYTES)
        job.step()
        scheduler.sendall(b"done\n")


def _fetch(tasks: TextIO, ready: queue.Queue[bytes]) -> None:
    """Ask the worker that has the partition for it: the task's line is its port."""
    peers: dict[str, socket.socket] = {}
    for line in tasks:
        if line not in peers:
            peers[line] = socket.create_connection(("127.0.0.1", int(line)))
        peers[line].sendall(b"?")
        ready.put(program.receive(peers[line], _PARTITION_BYTES))


def _main(workers: str, cpu_ms: str, round_size: str, pause_s: str) -> None:
    """The scheduler: a thread for each of those that are connected, which put what they say into one queue."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = int(listener.getsockname()[1])
    for number in range(int(workers)):
        program.forked("dask-worker", lambda number=number: _make(port, number, float(cpu_ms)))  # type: ignore[misc]
    program.forked("python-client", lambda: _submit(port, int(round_size), float(pause_s)))
    program.called("dask-scheduler")
    print(port, flush=True)
    heard: queue.Queue[tuple[socket.socket, str]] = queue.Queue()

    def listen(peer: socket.socket) -> None:
        for line in peer.makefile("r"):
            heard.put((peer, line.strip()))

    def accept() -> None:
        while True:
            threading.Thread(target=listen, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    _schedule(heard, int(workers))


def _schedule(heard: queue.Queue[tuple[socket.socket, str]], workers: int) -> None:
    """Partition n is made by worker n % workers and computed in order; the client hears when its round is over."""
    makers: list[socket.socket] = []
    made: dict[socket.socket, deque[str]] = {}
    gpu = client = None
    wanted = goal = asked = given = under_way = 0
    while True:
        peer, line = heard.get()
        if line == "cpu":
            makers.append(peer)
            made[peer] = deque()
        elif line == "gpu":
            gpu = peer
        elif line == "done":
            under_way -= 1
            wanted -= 1
            if wanted == 0 and client:
                client.sendall(b"finished\n")
        elif line.startswith("round"):
            client, wanted = peer, wanted + int(line.split()[1])
            asked = given = 0
            goal = wanted
        else:
            made[peer].append(line)
        if not gpu or not wanted or len(makers) < workers:
            continue
        while asked < goal and asked - given < _AHEAD * len(makers):
            makers[asked % len(makers)].sendall(b"make\n")
            asked += 1
        while given < asked and under_way < 2 and made[makers[given % len(makers)]]:
            gpu.sendall(made[makers[given % len(makers)]].popleft().encode() + b"\n")
            given += 1
            under_way += 1


def _make(port: int, number: int, cpu_ms: float) -> None:
    """A CPU worker: it makes partitions, and a thread of it hands them out."""
    listener = socket.create_server(("127.0.0.1", 0))
    partition = bytes(_PARTITION_BYTES)

    def hand_out() -> None:
        peer, _ = listener.accept()
        while peer.recv(1):
            peer.sendall(partition)

    threading.Thread(target=hand_out, name="dask-comm", daemon=True).start()
    scheduler = socket.create_connection(("127.0.0.1", port))
    scheduler.sendall(b"cpu\n")
    for _ in scheduler.makefile("r"):
        if number == 0 and program.raised("lost"):
            _wait_for_ever()
        until = time.thread_time() + cpu_ms / 1e3
        while time.thread_time() < until:
            zlib.crc32(partition)
        scheduler.sendall(f"{listener.getsockname()[1]}\n".encode())


def _wait_for_ever() -> None:
    """Gather a key from a peer that accepted the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_connection(silent.getsockname()) as peer:
        peer.recv(1)


def _submit(port: int, round_size: int, pause_s: float) -> None:
    scheduler = socket.create_connection(("127.0.0.1", port))
    answers = scheduler.makefile("r")
    while True:
        scheduler.sendall(f"round {round_size}\n".encode())
        answers.readline()
        time.sleep(pause_s)
