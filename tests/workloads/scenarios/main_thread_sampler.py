"""A recommender whose batch sampler, which runs in the trainer whatever the workers, draws hard negatives in Python after the warm-up."""

from __future__ import annotations

import os
import random
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_USERS, _ITEMS, _SEEN, _WIDTH = 3000, 20_000, 30, 16
_BATCH, _NEGATIVES, _CANDIDATES = 512, 4, 60


class Pairs(Dataset[torch.Tensor]):
    """The features of a user and of the items to tell apart for it."""

    def __init__(self) -> None:
        self.features = torch.randn(_ITEMS + _USERS, _WIDTH)

    def __getitem__(self, index: tuple[int, ...]) -> torch.Tensor:
        return self.features[list(index)]


class Negatives(Sampler[list[tuple[int, ...]]]):
    """Users, each with an item it has seen and some that it has not: any at first, later the best scored of popular ones."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag
        self.popularity = list(accumulate((rank + 1) ** -0.75 for rank in range(_ITEMS)))
        self.score = [random.random() for _ in range(_ITEMS)]
        self.seen = [{self.popular() for _ in range(_SEEN)} for _ in range(_USERS)]

    def popular(self) -> int:
        return min(bisect(self.popularity, random.random() * self.popularity[-1]), _ITEMS - 1)

    def negatives(self, user: int) -> list[int]:
        candidates: list[int] = []
        while len(candidates) < _CANDIDATES:
            if (item := self.popular()) not in self.seen[user]:
                candidates.append(item)
        return sorted(candidates, key=self.score.__getitem__)[-_NEGATIVES:]

    def __iter__(self) -> Iterator[list[tuple[int, ...]]]:
        while True:
            hard, users = self.flag.exists(), random.choices(range(_USERS), k=_BATCH)
            others = (self.negatives(user) if hard else random.choices(range(_ITEMS), k=_NEGATIVES) for user in users)
            yield [(_ITEMS + user, next(iter(self.seen[user])), *items) for user, items in zip(users, others, strict=True)]


def train(trainer: Trainer) -> None:
    sampler = Negatives(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "warm")
    pairs = DataLoader(Pairs(), batch_sampler=sampler, num_workers=3, prefetch_factor=3, multiprocessing_context="fork")
    trainer.fit(pairs, trainer.compute_ahead(24, every=25))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "warm").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, disturb)
