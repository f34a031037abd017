"""A server with dynamic batching under full load, beside a compressor of old logs at the lowest priority.

Four clients keep sixteen requests each under way. The server's one thread collects what its sockets have, up to sixteen requests a batch,
while the GPU works on the batch before; it launches the new one as soon as that is done, and only then answers. The compressor takes what
CPU is left over, which is most of one, and nobody misses it. The GPU works nearly all the time, on full batches. Nothing is wrong.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_CLIENTS, _EACH, _BATCH = 4, 16, 16
_REQUEST_BYTES, _ANSWER_BYTES = 4096, 64


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def answer(batch: object) -> None:
        now, before = batch  # type: ignore[misc]
        if before:
            gpu.synchronize()
        if now:
            gpu.copy_in(_REQUEST_BYTES * len(now), pinned=True)
            gpu.launch(24)
        for client in before:
            client.sendall(bytes(_ANSWER_BYTES))

    trainer.fit(_batches(), answer)


def _batches() -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """Each batch of requests, and the one before, which is answered when the GPU is done with it."""
    waiting: deque[socket.socket] = deque()
    before: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        for _ in range(_CLIENTS):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            multiprocessing.get_context("fork").Process(target=_ask, args=(theirs,), daemon=True).start()
            theirs.close()
            ours.setblocking(False)
            selector.register(ours, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select(0 if waiting or before else None):
                waiting.extend(_requests(key.fileobj))  # type: ignore[arg-type]
            now = [waiting.popleft() for _ in range(min(_BATCH, len(waiting)))]
            yield now, before
            before = now


def _requests(client: socket.socket) -> Iterator[socket.socket]:
    """The client once for each request that has come."""
    with suppress(BlockingIOError):
        while client.recv(_REQUEST_BYTES):
            yield client


def _ask(server: socket.socket) -> None:
    for _ in range(_EACH):
        server.sendall(bytes(_REQUEST_BYTES))
    while server.recv(_ANSWER_BYTES):
        server.sendall(bytes(_REQUEST_BYTES))


@contextmanager
def compressor(running: Running) -> Iterator[None]:
    """`gzip` of what never ends."""
    with running.child(["nice", "-n", "19", "sh", "-c", "gzip -9 < /dev/urandom > /dev/null"]):
        yield


SCENARIO = Scenario(HEALTHY, train, compressor)
