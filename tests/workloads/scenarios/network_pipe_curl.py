"""Shards come through a pipe from a program that fetches them, one after the other, as of `pipe:curl`; the store is far.

The trainer has no workers and reads the pipe itself. The program sleeps for the network, and hardly computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.network_latency import disturb, prepare

_GPU_MS, _SAMPLES, _SAMPLE_BYTES = 8, 40, 20_000
_FETCH = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
        connection.sendall(b"?")
        while part := connection.recv(1 << 16):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
"""


def _samples() -> Iterator[bytes]:
    command = [sys.executable, "-S", "-c", _FETCH, os.environ["GPUTOP_STORE_PORT"], str(_SAMPLES)]
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            while sample := program.stdout.read(2 * _SAMPLE_BYTES):
                yield sample


def train(trainer: Trainer) -> None:
    trainer.fit(_samples(), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "network-io"), train, disturb, prepare)
