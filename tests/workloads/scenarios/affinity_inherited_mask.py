"""The learner binds itself to one CPU, "so that launches are steady", and starts its actors afterwards.

Two spawned actors step a simulator in plain Python and send transitions through one queue. They need 1.8 CPUs, but a child inherits
the mask of its parent, so both share one CPU with the learner while all others idle. The work would fit the machine: the mask is
the cause, and `taskset -ap` on the actors repairs it.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from multiprocessing.queues import Queue

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_ACTORS, _CPU_MS, _GPU_MS = 2, 36, 20


def act(seed: int, transitions: Queue[list[float]]) -> None:
    """Play for ever; a message holds the transitions of a batch."""
    position, speed = 0.01 * seed, 0.0
    while True:
        until, episode = time.thread_time() + _CPU_MS / 1e3, [position]
        while time.thread_time() < until:
            for _ in range(100):
                speed += 0.001 * (1 if position < 0 else -1) - 0.0025 * (3 * position)
                position = max(-1.2, min(0.6, position + speed))
            episode.append(position)
        transitions.put(episode[-256:])


def train(trainer: Trainer) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    spawn = get_context("spawn")
    transitions: Queue[list[float]] = spawn.Queue(4)
    for seed in range(_ACTORS):
        spawn.Process(target=act, args=(seed, transitions), name=f"actor-{seed}", daemon=True).start()
    trainer.fit(iter(transitions.get, None), trainer.compute(_GPU_MS))


SCENARIO = Scenario(Label("input-bound", "affinity"), train, needs=lambda: "" if cpus() > 1 else "one CPU is all there is")
