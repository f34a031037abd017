"""A replay buffer is mapped from a file, and the container's memory limit leaves no room for it in the page cache.

A forked sampler reads transitions at random places of the map. While the file stays in memory this costs next to nothing. From the
onset on the limit lets the container keep a few percent of it: each page has just been dropped when it is needed again, and the
kernel reads it once more. The file does not grow and the disk is as quick as before, so memory is what is missing.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from tests.workloads import tight_memory
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_TRANSITIONS, _TRANSITION_BYTES, _GPU_MS, _ROOM_BYTES = 512, 4096, 20, 12 << 20


def _sample(path: Path, out: Connection) -> None:
    with path.open("rb") as file:
        replay = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    replay.madvise(mmap.MADV_RANDOM)
    choice = random.Random(5)
    while True:
        places = (choice.randrange(len(replay) // _TRANSITION_BYTES) * _TRANSITION_BYTES for _ in range(_TRANSITIONS))
        out.send_bytes(b"".join(replay[at : at + 16] for at in places))


def _batches(pipe: Connection) -> Iterator[bytes]:
    while True:
        yield pipe.recv_bytes()


def train(trainer: Trainer) -> None:
    path, fork = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples", get_context("fork")
    with path.open("rb") as file:  # the buffer has just been filled: it is in memory
        while file.read(1 << 20):
            pass
    end, out = fork.Pipe(duplex=False)
    fork.Process(target=_sample, args=(path, out), daemon=True).start()
    trainer.fit(_batches(end), trainer.compute(_GPU_MS))


def limit(running: Running) -> AbstractContextManager[Path]:
    return tight_memory.limited(running, _ROOM_BYTES)


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, limit, tight_memory.group, needs=tight_memory.missing)
