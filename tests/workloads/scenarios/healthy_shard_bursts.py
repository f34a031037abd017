"""An IterableDataset whose workers open a shard, unpack all of it, and then hand out its samples in no time.

A worker is silent while it waits for the download of the next shard and unpacks it, and then fills dozens of places of its
queue at once: the loader works in bursts, and the queues go up and down. They are deep enough (`prefetch_factor=16`) to
last over the silence, so that the trainer always finds a batch. The bursts look like starving, and nothing is wrong.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.loop import Trainer
from tests.workloads.scenario import HEALTHY, Scenario

_BATCH, _SHARD_SAMPLES, _SAMPLE_BYTES = 8, 48, 24_000
_DOWNLOAD_S, _UNPACK_MS = 0.12, 50.0


class Shards(IterableDataset[torch.Tensor]):
    """Shards without end."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        packed = zlib.compress(bytes(range(240)) * (_SHARD_SAMPLES * _SAMPLE_BYTES // 240), 6)
        while True:
            time.sleep(_DOWNLOAD_S)
            until = time.thread_time() + _UNPACK_MS / 1e3
            while time.thread_time() < until:
                raw = bytearray(zlib.decompress(packed))
            shard = torch.frombuffer(raw, dtype=torch.uint8).reshape(_SHARD_SAMPLES, _SAMPLE_BYTES)
            yield from shard


def train(trainer: Trainer) -> None:
    batches = DataLoader(
        Shards(), batch_size=_BATCH, num_workers=2, prefetch_factor=16, persistent_workers=True, multiprocessing_context="spawn"
    )  # fmt: skip
    trainer.fit(batches, trainer.compute(32))


SCENARIO = Scenario(HEALTHY, train)
