"""A price model scores ticks that a subscriber receives from an exchange's feed, some hundred small messages a second, and later few.

Truth: idle. A tick takes the GPU 0.4 ms. From the onset on the market is quiet and 30 messages a second come, of 300 bytes; each is scored
at once. The model has all input there is, nobody is a victim or to blame.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from tests.workloads import native, program
from tests.workloads.scenario import Label, Scenario

if TYPE_CHECKING:
    from tests.workloads.loop import Trainer
    from tests.workloads.runner import Running

_TICK = 300


def train(_trainer: Trainer) -> None:
    program.become(rank)


def rank() -> None:
    """The model: it reads ticks from its subscriber's pipe."""
    ticks, ours = os.pipe()
    program.forked("feed_handler", lambda: _subscribe(ours))
    os.close(ours)
    job = program.Job()
    program.called("price_model")
    while tick := os.read(ticks, _TICK):
        job.compute(0.4 if len(tick) == _TICK else 0.1, kernels=2)
        job.step()


def _subscribe(into: int) -> None:
    feed = program.service()
    while True:
        os.write(into, program.receive(feed, _TICK))


def serve() -> None:
    """The exchange."""
    listener = socket.create_server(("127.0.0.1", 0))
    program.called("exchange")
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=_send, args=(listener.accept()[0],), daemon=True).start()


def _send(client: socket.socket) -> None:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(ConnectionError):
        while True:
            client.sendall(bytes(_TICK))
            time.sleep(1 / 30 if program.raised("quiet") else 1 / 400)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with program.serving(running, serve):
        yield


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="quiet"), prepare)
