"""An actor-learner as MonoBeast lays it out: actors fill shared buffers, two threads learn by turns, the main thread only looks on."""

from __future__ import annotations

import math
import random
import time
from contextlib import suppress
from multiprocessing.queues import SimpleQueue
from threading import Lock, Thread

import torch
from torch.multiprocessing import get_context

from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_ACTORS, _BUFFERS, _UNROLL, _BATCH = 3, 48, 20, 4
_POLE, _FORCE, _TIC = 0.5, 10.0, 0.02


def _act(buffers: torch.Tensor, free: SimpleQueue[int], full: SimpleQueue[int]) -> None:
    """Balance a pole for the length of a buffer, whenever one is free."""
    torch.set_num_threads(1)
    angle, speed = random.uniform(-0.05, 0.05), 0.0
    while True:
        index, observed = free.get(), []
        for _ in range(_UNROLL):
            push = math.copysign(_FORCE, angle + speed / 4)
            speed += _TIC * (9.8 * math.sin(angle) - math.cos(angle) * push) / _POLE
            angle += _TIC * speed
            observed.append((angle, speed, push))
        buffers[index] = torch.tensor(observed)
        full.put(index)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    context = get_context("fork")
    buffers = torch.zeros(_BUFFERS, _UNROLL, 3).share_memory_()  # type: ignore[no-untyped-call]
    free, full = context.SimpleQueue(), context.SimpleQueue()
    for _ in range(_ACTORS):
        context.Process(target=_act, args=(buffers, free, full), daemon=True).start()
    for index in range(_BUFFERS):
        free.put(index)
    taking, learning, update = Lock(), Lock(), trainer.compute_ahead(12, every=8)

    def learn() -> None:
        with suppress(Over):
            while True:
                with taking:
                    indices = [full.get() for _ in range(_BATCH)]
                batch = torch.stack([buffers[index] for index in indices], dim=1)
                for index in indices:
                    free.put(index)
                with learning:
                    update(batch)
                    trainer.tick()

    learners = [Thread(target=learn, name=f"batch-and-learn-{i}", daemon=True) for i in range(2)]
    for learner in learners:
        learner.start()
    while any(learner.is_alive() for learner in learners):
        time.sleep(5)


SCENARIO = Scenario(HEALTHY, train)
