"""Two decoder programs write batches to pipes; the codec in them segfaults at some images, and a watchdog starts them anew.

Each start imports torch before the first image is decoded, which takes a second or more, and after nine batches the next broken image
comes. Decoding itself would be quick enough for the GPU. What the trainer waits for is programs that start again and again.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Thread

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_DECODERS = 2
_BATCHES = 9
_BATCH, _BATCH_BYTES = 8, 32 << 10


def train(trainer: Trainer) -> None:
    ready: queue.Queue[bytes] = queue.Queue(8)
    for _ in range(_DECODERS):
        Thread(target=_watch, args=(ready,), daemon=True).start()
    trainer.fit(_batches(ready), trainer.compute(20))


def _batches(ready: queue.Queue[bytes]) -> Iterator[bytes]:
    while True:
        yield ready.get()


def _watch(ready: queue.Queue[bytes]) -> None:
    """Restart a decoder whenever it is gone."""
    while True:
        with subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE) as decoder:
            while len(batch := decoder.stdout.read(_BATCH_BYTES)) == _BATCH_BYTES:  # type: ignore[union-attr]
                ready.put(batch)


def _decode() -> None:
    from tests.workloads.data import decode

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for _ in range(_BATCHES):
        for _image in range(_BATCH):
            decode(0.8)
        sys.stdout.buffer.write(bytes(_BATCH_BYTES))
        sys.stdout.buffer.flush()
    os.kill(os.getpid(), signal.SIGSEGV)


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)

if __name__ == "__main__":
    _decode()
