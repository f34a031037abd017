"""Two ranks of a PPO training, and the episodes of one of them become long.

Each rank has an actor of its own that plays in plain Python and delivers through a queue. From the onset on rank 1's scenes take 60
ms of a CPU instead of 8; rank 0's do not. Rank 1 comes late to each all-reduce, and rank 0 waits for it there with a busy GPU that
does nothing: rank 1 is the straggler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

from tests.workloads import collective
from tests.workloads.data import numbers
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_SHORT_MS, _LONG_MS, _GPU_MS, _SLOW_RANK = 8, 60, 20, 1


def _act(rank: int, rollouts: Queue[list[int]]) -> None:
    crowded = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "crowded"
    while True:
        rollouts.put([numbers(_LONG_MS if rank == _SLOW_RANK and crowded.exists() else _SHORT_MS)] * 128)


def _update(trainer: Trainer) -> Callable[[object], None]:
    group = collective.Group(trainer.gpu, trainer.rank)

    def step(_rollout: object) -> None:
        trainer.gpu.copy_in(1 << 18)
        trainer.gpu.launch(_GPU_MS)
        group.all_reduce()
        trainer.gpu.synchronize()

    return step


def train(trainer: Trainer) -> None:
    fork = get_context("fork")
    rollouts: Queue[list[int]] = fork.Queue(2)
    fork.Process(target=_act, args=(trainer.rank, rollouts), daemon=True).start()
    trainer.fit(iter(rollouts.get, None), _update(trainer))


@contextmanager
def crowd(running: Running) -> Iterator[None]:
    (running.folder / "crowded").touch()
    yield


SCENARIO = Scenario(Label("straggler", "straggler-rank"), train, crowd, collective.prepare, ranks=2, devices=2)
