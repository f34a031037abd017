"""PPO whose learner computes the advantages itself: a loop over time steps in plain Python, before each update.

Two forked actors deliver rollouts through a queue, always ahead of the learner, and idle most of the time. The learner's main thread
goes backwards through each rollout for longer than the update takes, and the GPU idles meanwhile. The data is there and nobody
else is in the way: the preparation in the main thread is the cause.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.queues import Queue

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_STEPS, _DISCOUNT, _LAMBDA = 512, 0.99, 0.95
_CPU_MS, _GPU_MS = 40, 25

Rollout = tuple[list[float], list[float]]


def _act(rollouts: Queue[Rollout], seed: int) -> None:
    choice = random.Random(seed)
    while True:
        rollouts.put(([choice.random() for _ in range(_STEPS)], [choice.random() for _ in range(_STEPS + 1)]))


def _advantages(rewards: list[float], values: list[float]) -> list[float]:
    """Of all environments of the rollout; they are alike here, and there are as many as take `_CPU_MS`."""
    until = time.thread_time() + _CPU_MS / 1e3
    while True:
        running, advantages = 0.0, [0.0] * len(rewards)
        for t in reversed(range(len(rewards))):
            running = rewards[t] + _DISCOUNT * values[t + 1] - values[t] + _DISCOUNT * _LAMBDA * running
            advantages[t] = running
        if time.thread_time() >= until:
            return advantages


def _updates() -> Iterator[list[float]]:
    fork = get_context("fork")
    rollouts: Queue[Rollout] = fork.Queue(4)
    for seed in range(2):
        fork.Process(target=_act, args=(rollouts, seed), daemon=True).start()
    while True:
        yield _advantages(*rollouts.get())


def train(trainer: Trainer) -> None:
    trainer.fit(_updates(), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train)
