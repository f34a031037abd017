"""Off-policy reinforcement learning: actors write transitions to a replay buffer in shared memory, and the learner samples from it.

One lock guards the buffer. From some moment on the evaluator, an actor as well, backs off between tries to report while it holds that lock.
Truth: the learner's GPU starves (input-bound) because the learner, like the other actors, waits in futex for a lock whose holder
`ray::Evaluator` sleeps (lock-contention); CPUs idle meanwhile. Victims are learner and actors, to blame is the evaluator; reporting after
the lock is released would fix it, more actors would not.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.workloads import native
from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_ACTORS, _ROWS, _ROW_BYTES, _BATCH = 2, 4096, 1024, 64
_ROLLOUT_MS, _STEP_MS, _BACK_OFF_S = 3.0, 30.0, 0.25
_fork = multiprocessing.get_context("fork")


def train(trainer: Trainer) -> None:
    replay, lock = mmap.mmap(-1, _ROWS * _ROW_BYTES), _fork.Lock()
    slow = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "slow"

    def play() -> None:
        numbers(_ROLLOUT_MS)
        with lock:
            _write(replay)
        time.sleep(0.03)  # the simulator's own pace

    def evaluate() -> None:
        with lock:
            sum(replay[row * _ROW_BYTES] for row in range(0, _ROWS, 16))
            if slow.exists():
                time.sleep(_BACK_OFF_S)
        time.sleep(0.02)

    for _ in range(_ACTORS):
        _fork.Process(target=_actor, args=(b"ray::Actor", play), daemon=True).start()
    _fork.Process(target=_actor, args=(b"ray::Evaluator", evaluate), daemon=True).start()

    def sampled() -> Iterator[bytes]:
        while True:
            with lock:
                rows = [random.randrange(_ROWS) * _ROW_BYTES for _ in range(_BATCH)]
                batch = b"".join(replay[row : row + _ROW_BYTES] for row in rows)
            yield batch

    trainer.fit(sampled(), trainer.compute(_STEP_MS, bytes_in=_BATCH * _ROW_BYTES))


def _actor(name: bytes, turn: Callable[[], None]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    ctypes.CDLL(None).prctl(15, name)
    while True:
        turn()


def _write(replay: mmap.mmap) -> None:
    row = random.randrange(_ROWS) * _ROW_BYTES
    replay[row : row + _ROW_BYTES] = os.urandom(_ROW_BYTES)


SCENARIO = Scenario(Label("input-bound", "lock-contention"), train, native.flag)
