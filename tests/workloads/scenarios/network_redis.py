"""A `ProcessPoolExecutor` looks up a recommender's features in Redis, two round trips after each other a session; then Redis is far."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedRWPair
from itertools import count
from multiprocessing import get_context
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread

import torch

from tests.workloads import web
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PROCESSES, _SESSIONS, _ITEMS, _FEATURES = 3, 32, 20, 64
_FAR_S = 0.003


@cache
def redis() -> BufferedRWPair:
    """The one connection of this process."""
    connection = socket.create_connection(("127.0.0.1", int(os.environ["GPUTOP_STORE_PORT"])))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection.makefile("rwb")


def ask(command: bytes) -> list[bytes]:
    """One round trip: an inline command, and an array."""
    redis().write(command + b"\r\n")
    redis().flush()
    return [redis().read(int(redis().readline()[1:]) + 2)[:-2] for _ in range(int(redis().readline()[1:]))]


def batch(number: int) -> torch.Tensor:
    """For each session the items its user has seen, and then their features."""
    rows = []
    for session in range(_SESSIONS):
        seen = ask(b"LRANGE user:%d:seen 0 %d" % (number * _SESSIONS + session, _ITEMS - 1))
        features = bytearray(b"".join(ask(b"MGET " + b" ".join(seen))))
        rows.append(torch.frombuffer(features, dtype=torch.float32).reshape(_ITEMS, _FEATURES))
    return torch.stack(rows).mean(1)


def batches(pool: ProcessPoolExecutor) -> Iterator[torch.Tensor]:
    """In order, two asked for ahead of each process."""
    coming = deque(pool.submit(batch, number) for number in range(2 * _PROCESSES))
    for number in count(2 * _PROCESSES):
        yield coming.popleft().result()
        coming.append(pool.submit(batch, number))


def train(trainer: Trainer) -> None:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(_PROCESSES, context) as pool:
        trainer.fit(batches(pool), trainer.compute_ahead(40, every=8))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    far, features = running.folder / "slow", os.urandom(4 * _FEATURES)

    class Redis(StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with suppress(ConnectionError):  # a client may leave in the middle
                while command := self.rfile.readline():
                    if far.exists():
                        time.sleep(_FAR_S)
                    values = [features if command.startswith(b"MGET") else b"item:%d" % i for i in range(_ITEMS)]
                    self.wfile.write(b"*%d\r\n" % _ITEMS + b"".join(b"$%d\r\n%s\r\n" % (len(value), value) for value in values))

    with ThreadingTCPServer(("127.0.0.1", 0), Redis) as server:
        server.daemon_threads, server.block_on_close = True, False
        Thread(target=server.serve_forever, daemon=True).start()
        running.env["GPUTOP_STORE_PORT"] = str(server.server_address[1])
        yield
        server.shutdown()


SCENARIO = Scenario(Label("input-bound", "network-io"), train, web.slow, prepare)
