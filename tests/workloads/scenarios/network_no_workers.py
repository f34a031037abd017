"""A streaming data set without workers: the trainer fetches each sample itself, a request each, from a far store; its GPU hardly works.

The store's answers come late, so that ten steps a second are left, and the GPU computes 8 ms for each. It rests for over nine tenths of
the time, as a server's does that is seldom asked; but nobody can ask this one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.network_latency import disturb, prepare

_GPU_MS, _SAMPLES = 8, 2


def _fetched() -> Iterator[list[bytes]]:
    port = int(os.environ["GPUTOP_STORE_PORT"])
    while True:
        batch = []
        for _ in range(_SAMPLES):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.settimeout(None)
                connection.sendall(b"?")
                batch.append(connection.recv(1 << 16))
        yield batch


def train(trainer: Trainer) -> None:
    trainer.fit(_fetched(), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, disturb, prepare)
