"""An inference server: it waits for requests on a socket, and its GPU works for what comes. Nothing is wrong."""

from __future__ import annotations

import random
import socket
import threading
import time

from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_ask, args=(listener.getsockname()[1],), daemon=True).start()
    answer = trainer.compute(40)
    try:
        while True:
            connection, _ = listener.accept()
            with connection:
                answer(connection.recv(1))
                connection.sendall(b"!")
            trainer.tick()
    except Over:
        return


def _ask(port: int) -> None:
    """Clients: one request each third of a second or so."""
    while True:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"?")
            connection.recv(1)
        time.sleep(random.expovariate(3.0))


SCENARIO = Scenario(Label("idle", "none"), train)
