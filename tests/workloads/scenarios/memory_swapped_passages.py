"""Passages in a Python list: counting references copies it in each forked worker, and the pod swaps what is over its limit."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads import cgroup, tight_memory
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_PASSAGES, _PASSAGE_BYTES, _FREQUENT = 240_000, 700, 2000
_NEGATIVES, _KEPT_BYTES = 320, 48
_SWAP_BYTES, _ROOM_BYTES = 1 << 30, 8 << 20


class Negatives(Dataset[torch.Tensor]):
    """For a retriever: the first tokens of passages drawn at random, from the frequent ones at first and from all once a flag is up."""

    def __init__(self, flag: Path) -> None:
        self.passages = [os.urandom(_PASSAGE_BYTES) for _ in range(_PASSAGES)]
        self.flag = flag

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        known = len(self.passages) if self.flag.exists() else _FREQUENT
        drawn = (self.passages[random.randrange(known)] for _ in range(_NEGATIVES))
        tokens = b"".join(passage[:_KEPT_BYTES] for passage in drawn)
        return torch.frombuffer(bytearray(tokens), dtype=torch.int16).reshape(_NEGATIVES, -1)


def train(trainer: Trainer) -> None:
    negatives = Negatives(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "all")
    trainer.fit(loader(negatives, workers=3, batch=16, prefetch_factor=3), trainer.compute(48))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    swap = running.folder / "swap"
    with swap.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _SWAP_BYTES)
    swap.chmod(0o600)
    subprocess.run(["/sbin/mkswap", swap], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["/sbin/swapon", swap], check=True)
    try:
        with cgroup.group("memory", running.name) as group:
            running.env["GPUTOP_WORKLOAD_CGROUP"] = str(group)
            yield
    finally:
        subprocess.run(["/sbin/swapoff", swap], check=True)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with tight_memory.limited(running, _ROOM_BYTES):
        (running.folder / "all").touch()
        yield


def missing() -> str:
    return cgroup.missing("memory") or ("" if Path("/proc/swaps").exists() and Path("/sbin/swapon").exists() else "no swap")


SCENARIO = Scenario(Label("input-bound", "memory-pressure"), train, disturb, prepare, needs=missing)
