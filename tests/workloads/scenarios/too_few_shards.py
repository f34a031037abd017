"""Four workers for a stream that is a single shard: one of them reads it, the others have nothing to do all along."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads.data import decode
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_SHARDS = ("train-00000-of-00001.tar",)


class Stream(IterableDataset[torch.Tensor]):
    """Each worker takes every n-th shard, as webdataset and Hugging Face do it."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        for _shard in _SHARDS[worker.id :: worker.num_workers]:
            while True:
                yield decode(5)


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Stream(), workers=4), trainer.compute(24))


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train)
