"""Shards of unlike size: three of four workers are soon through with theirs and exit, and one alone reads on for the whole epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SAMPLES = (1 << 40, 24, 24, 24)


class Stream(IterableDataset[torch.Tensor]):
    """A shard for each worker."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        for _ in range(_SAMPLES[worker.id]):
            yield decode(5)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Stream(), workers=4, persistent_workers=False), trainer.compute(24))


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train)
