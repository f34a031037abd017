"""Reinforcement learning: actors play all the time in processes of their own, and the learner draws from what they have played so far."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.queues import Queue

import torch

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario, cpus

_BATCH, _ROOM = 64, 20_000
_Move = tuple[float, float, float, float, float]


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    fork, replay = multiprocessing.get_context("fork"), deque[_Move](maxlen=_ROOM)
    played: Queue[_Move] = fork.Queue()
    for _ in range(max(1, cpus() // 2)):
        fork.Process(target=_play, args=(played,), name="actor", daemon=True).start()
    while len(replay) < _BATCH:
        replay.append(played.get())
    threading.Thread(target=_collect, args=(played, replay), name="collect", daemon=True).start()
    trainer.fit(_draw(replay), trainer.compute(50, kernels=10))


def _play(played: Queue[_Move]) -> None:
    """Move after move in a simulated world, as fast as it goes."""
    while True:
        numbers(8)
        played.put((random.random(), random.random(), random.random(), random.random(), 1.0))


def _collect(played: Queue[_Move], replay: deque[_Move]) -> None:
    while True:
        replay.append(played.get())


def _draw(replay: deque[_Move]) -> Iterator[torch.Tensor]:
    while True:
        yield torch.tensor([replay[random.randrange(len(replay))] for _ in range(_BATCH)])


SCENARIO = Scenario(HEALTHY, train)
