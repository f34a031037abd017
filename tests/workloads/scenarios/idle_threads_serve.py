"""An inference server whose threads accept requests and hand them to the main thread, which computes them; few clients ask."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_GPU_MS, _ASKED_PER_S = 6, 8.0
_CLIENT = """
import random, socket, sys, time
while True:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(b"?")
        connection.recv(1)
    time.sleep(random.expovariate(float(sys.argv[2])))
"""


def _requests(listener: socket.socket) -> Iterator[socket.socket]:
    asked: queue.Queue[socket.socket] = queue.Queue()

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            connection.recv(1)
            asked.put(connection)

    Thread(target=accept, daemon=True).start()
    while True:
        with asked.get() as connection:
            yield connection
            connection.sendall(b"!")


def train(trainer: Trainer) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    subprocess.Popen([sys.executable, "-S", "-c", _CLIENT, str(listener.getsockname()[1]), str(_ASKED_PER_S)])
    trainer.fit(_requests(listener), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("idle", "none"), train)
