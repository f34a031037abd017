"""Actors append episodes to a replay store and sleep under its lock: the learner, which samples under that lock, waits for them.

Nobody computes much. Who has the lock sleeps, and everybody else sleeps for who has the lock.
"""

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.synchronize import Lock

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_ACTORS = 5
_PLAY_S, _APPEND_S = 0.015, 0.006
_SAMPLES, _LEARN_MS = 3, 18


def act(lock: Lock) -> None:
    """Play in a simulator that runs elsewhere, then append what came of it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    ctypes.CDLL(None).prctl(15, b"actor")
    while True:
        time.sleep(_PLAY_S)
        with lock:
            decode(1.0)
            time.sleep(_APPEND_S)  # a write-through store far away


def samples(lock: Lock) -> Iterator[object]:
    while True:
        parts = []
        for _ in range(_SAMPLES):
            with lock:
                parts.append(decode(0.5))
        yield parts


def train(trainer: Trainer) -> None:
    context = get_context("fork")
    lock = context.Lock()
    for _ in range(_ACTORS):
        context.Process(target=act, args=(lock,), daemon=True).start()
    trainer.fit(samples(lock), trainer.compute(_LEARN_MS))


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, env={"OMP_NUM_THREADS": "1"})
