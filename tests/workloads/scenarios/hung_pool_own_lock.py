"""A pool's sample that cannot be read is reported under the lock that its reader holds already: two of three processes wait for ever."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Lock, Semaphore

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WORKERS, _AHEAD, _DECODE_MS = 3, 12, 45
_told = Lock()


def load(_number: int) -> bytes:
    """A sample; in all processes but the first some cannot be read, from the onset on."""
    with _told:
        decode(_DECODE_MS)
        if _is_broken():
            report()
    return bytes(100_000)


def report() -> None:
    with _told:
        pass


def _is_broken() -> bool:
    first = multiprocessing.current_process().name.endswith("-1")
    return not first and (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "broken").exists()


def batches() -> Iterator[object]:
    """In whatever order they come, a dozen asked for ahead."""
    room = Semaphore(_AHEAD)
    with multiprocessing.get_context("fork").Pool(_WORKERS) as pool:
        for sample in pool.imap_unordered(load, (number for number in count() if room.acquire())):
            room.release()
            yield sample


def train(trainer: Trainer) -> None:
    trainer.fit(batches(), trainer.compute(24))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "broken").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
