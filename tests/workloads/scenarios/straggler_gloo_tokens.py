"""Two ranks sum gradients by gloo on a good network; one then tokenizes its texts itself, and the other waits in the all-reduce."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from tests.workloads import netspace
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS, _TOKENIZE_CPU_S = 2, 0.08
_TEXT = "The late rank reads its own text. " * 64


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    netspace.join_gloo(trainer.rank, _RANKS)
    gpu, gradients, raw = trainer.gpu, torch.ones(1 << 19), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "raw"

    def step(_batch: object) -> None:
        if trainer.rank and raw.exists():
            tokenize()
        gpu.copy_in(1 << 20, pinned=True)
        gpu.launch(40)
        gpu.synchronize()
        gpu.copy_out(4 * len(gradients))
        dist.all_reduce(gradients)
        gpu.copy_in(4 * len(gradients), pinned=True)
        gpu.launch(3)

    trainer.fit(iter(lambda: gradients, None), step)


def tokenize() -> None:
    until = time.thread_time() + _TOKENIZE_CPU_S
    while time.thread_time() < until:
        _TEXT.casefold().split()


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "raw").touch()
    running.blame(running.trainer_pids[1], "train.py")
    yield
    running.account()


SCENARIO = Scenario(
    Label("straggler", "straggler-rank", frozenset({"train.py"})), train, disturb, netspace.prepare, ranks=_RANKS, devices=_RANKS,
    needs=netspace.needs, env={"OMP_NUM_THREADS": "1"},
)  # fmt: skip
