"""Four ranks, and rank 0 alone logs: after each step it fetches the weights and works out their histograms on the CPU."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.workloads import collective
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS, _BUCKETS, _LOG_CPU_S = 4, 3, 0.05


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    gpu, group, watch = trainer.gpu, collective.Group(trainer.gpu, trainer.rank), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "watch"
    weights = torch.randn(1 << 16)

    def step(_batch: object) -> None:
        gpu.copy_in(64 << 10)
        gpu.launch(12)
        for _ in range(_BUCKETS):
            gpu.launch(8)
            group.all_reduce()
        gpu.synchronize()
        if trainer.rank == 0 and watch.exists():
            gpu.copy_out(1 << 20)
            histograms(weights)

    trainer.fit(slices(torch.randint(50257, (1 << 20,))), step)


def slices(tokens: torch.Tensor) -> Iterator[torch.Tensor]:
    """Batches of text, cut out of memory: no loader is needed."""
    while True:
        yield torch.stack([tokens[at : at + 1024] for at in random.sample(range(len(tokens) - 1024), 8)])


def histograms(weights: torch.Tensor) -> None:
    """One per layer, until the CPU time of them all is used."""
    until = time.thread_time() + _LOG_CPU_S
    while time.thread_time() < until:
        torch.histc(weights, 64)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "watch").touch()
    running.blame(running.trainer_pids[0], "train.py")
    yield
    running.account()


SCENARIO = Scenario(
    Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, collective.prepare, ranks=_RANKS, devices=_RANKS
)
