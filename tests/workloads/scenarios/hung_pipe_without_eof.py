"""Three forked producers, each with a pipe of its own that the trainer reads in turn; the kernel kills one of them for memory.

The trainer has never closed its own copies of the pipes' write ends, so that the dead producer's pipe does not end: `recv` waits for ever,
and the GPU idles from then on. The other two are well, and stand before full pipes. The worker that is dead is the cause.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running, descendants
from tests.workloads.scenario import Label, Scenario

_PRODUCERS = 3
_BATCH, _BATCH_BYTES = 8, 48 << 10


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(22))


def _batches() -> Iterator[bytes]:
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(_PRODUCERS)]
    for _, writer in pipes:
        fork.Process(target=_produce, args=(writer,), daemon=True).start()
    while True:
        for reader, _ in pipes:
            yield reader.recv_bytes()


def _produce(writer: Connection) -> None:
    while True:
        for _ in range(_BATCH):
            decode(1.5)
        writer.send_bytes(bytes(_BATCH_BYTES))


@contextmanager
def out_of_memory(running: Running) -> Iterator[None]:
    """What the kernel's killer does to the second producer."""
    os.kill(sorted(descendants(running.trainer_pids))[1], signal.SIGKILL)
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, out_of_memory)
