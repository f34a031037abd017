"""A fraud scorer waits for payments that a queue server hands out; at night none come, and the server compacts its journal on the disk.

Truth: idle. From the onset on nobody pays: the scorer's request stands unanswered at `queued`, whose main thread waits for clients and
whose compaction thread writes and syncs its journal, which no payment waits for. The GPU has nothing to do, nobody is a victim or to blame.
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

_PAYMENT = 2048


def train(_trainer: Trainer) -> None:
    program.become(rank)


def rank() -> None:
    """The scorer: it asks for the next payment and waits."""
    job, source = program.Job(), program.service()
    program.called("fraud_score")
    while True:
        source.sendall(b"?")
        program.receive(source, _PAYMENT)
        job.compute(12.0)
        job.step()


def serve() -> None:
    """The queue."""
    listener = socket.create_server(("127.0.0.1", 0))
    program.called("queued")
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_compact, daemon=True).start()
    while True:
        threading.Thread(target=_hand_out, args=(listener.accept()[0],), daemon=True).start()


def _hand_out(client: socket.socket) -> None:
    with suppress(ConnectionError):
        while client.recv(1):
            while program.raised("night"):
                time.sleep(0.5)
            client.sendall(bytes(_PAYMENT))


def _compact() -> None:
    journal = os.open(program.folder() / "journal", os.O_RDWR | os.O_CREAT)
    block = os.urandom(1 << 20)
    while True:
        while not program.raised("night"):
            time.sleep(0.2)
        for at in range(8):
            os.pwrite(journal, block, at << 20)
            os.fsync(journal)
        time.sleep(0.05)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with program.serving(running, serve):
        yield


SCENARIO = Scenario(Label("idle", "none"), train, partial(native.flag, name="night"), prepare)
