"""Actor-critic learning with its environments in threads of the learner, in pure Python: six of them play no faster than one."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator
from queue import Queue

import torch

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_ENVIRONMENTS, _ROLLOUT_MS = 6, 16.0
_Move = tuple[float, float, float]


def rollout(cpu_ms: float) -> list[_Move]:
    """Swing a pendulum for ``cpu_ms`` of this thread's CPU time."""
    until = time.thread_time() + cpu_ms / 1e3
    angle, speed, moves = random.uniform(-math.pi, math.pi), 0.0, list[_Move]()
    while time.thread_time() < until:
        for _ in range(20):
            push = random.gauss(0, 1) if abs(speed) < 8 else -math.copysign(2, speed)
            speed += (15 * math.sin(angle) + 3 * push) * 0.05
            angle = (angle + speed * 0.05 + math.pi) % (2 * math.pi) - math.pi
        moves.append((angle, speed, push))
    return moves[:32]


def play(played: Queue[list[_Move]], cpu_ms: float) -> None:
    """One environment, which may be one rollout ahead of the learner."""
    while True:
        played.put(rollout(cpu_ms))


def batches() -> Iterator[torch.Tensor]:
    """A rollout of each environment per update."""
    queues = [Queue[list[_Move]](1) for _ in range(_ENVIRONMENTS)]
    for number, queue in enumerate(queues):
        threading.Thread(target=play, args=(queue, _ROLLOUT_MS), name=f"env-{number}", daemon=True).start()
    while True:
        yield torch.tensor([move for queue in queues for move in queue.get()])


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    trainer.fit(batches(), trainer.compute(60, kernels=6))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
