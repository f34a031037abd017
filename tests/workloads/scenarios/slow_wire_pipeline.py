"""Four ranks hand their part of the weights round a ring, each by a thread that sends while the main thread receives; then the network
slows to 60 Mbit/s."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import AbstractContextManager

from tests.workloads import netspace
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS, _PORT, _PART = 4, 29700, bytes(96 << 10)


def train(trainer: Trainer) -> None:
    netspace.enter()
    gpu, rank = trainer.gpu, trainer.rank
    server = socket.create_server(("127.0.0.1", _PORT + rank))
    following = _connected(_PORT + (rank + 1) % _RANKS)
    before, _ = server.accept()
    view = memoryview(bytearray(len(_PART)))

    def hop() -> None:
        sender = threading.Thread(target=following.sendall, args=(_PART,))
        sender.start()
        at = 0
        while at < len(_PART):
            at += before.recv_into(view[at:])
        sender.join()

    def step(_batch: object) -> None:
        gpu.launch(45)
        gpu.synchronize()
        for _ in range(_RANKS - 1):
            hop()
        gpu.copy_in(len(_PART), pinned=True)

    trainer.fit(iter(lambda: _PART, None), step)


def _connected(port: int) -> socket.socket:
    until = time.monotonic() + 60.0
    found = socket.socket()
    while found.connect_ex(("127.0.0.1", port)):
        if time.monotonic() > until:
            raise TimeoutError(f"no rank listens at {port}")
        found.close()
        time.sleep(0.01)
        found = socket.socket()
    return found


def disturb(running: Running) -> AbstractContextManager[None]:
    return netspace.slowed(running, 60)


SCENARIO = Scenario(
    Label("comm-bound", "slow-wire"), train, disturb, netspace.prepare, ranks=_RANKS, devices=_RANKS, needs=netspace.needs
)
