"""A server keeps forty connections open, of clients that ask for nothing any more.

Truth: the GPU idles (idle) and nothing is wrong (none): the server polls its clients' connections, and each of them sleeps by its own will.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from tests.workloads import front, native
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_CLIENTS, _GPU_MS = 40, 25.0


def _ask(port: int, quiet: str) -> None:
    """All connections ask in turn, two at a time, then none does."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(_CLIENTS)]
    while not os.path.exists(quiet):
        for connection in connections[:2]:
            connection.sendall(b"?")
        for connection in connections[:2]:
            front.received(connection, 1)
        connections = connections[2:] + connections[:2]
    time.sleep(3600)


def _requests(listener: socket.socket) -> Iterator[socket.socket]:
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                    continue
                client = key.fileobj
                assert isinstance(client, socket.socket)
                front.received(client, 1)
                yield client
                client.sendall(b"!")


def train(trainer: Trainer) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=_CLIENTS)
    if os.fork() == 0:
        front.called("clients")
        with suppress(ConnectionError):
            _ask(listener.getsockname()[1], f"{os.environ['GPUTOP_WORKLOAD_FOLDER']}/quiet")
        os._exit(0)
    trainer.fit(_requests(listener), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"))
