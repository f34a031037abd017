"""Click logs hashed to features in pure Python by threads of the trainer, kept ahead of it (as torchdata's `method="thread"`)."""

from __future__ import annotations

import time
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, count

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_THREADS, _AHEAD = 4, 12
_CHUNKS, _CHUNK_CPU_MS = 4, 34
_STEP_MS = 90
_FEATURES = 512


def hashed(chunk: int) -> torch.Tensor:
    """The features of the log's next lines, crossed in pairs and counted, until this chunk's CPU time is used."""
    until = time.thread_time() + _CHUNK_CPU_MS / 1e3
    counts = [0] * _FEATURES
    for line in count(chunk << 10):
        if time.thread_time() >= until:
            break
        fields = [f"f{column}={(line * 2654435761 >> column) % 9973:x}" for column in range(26)]
        for left, right in combinations(fields, 2):
            counts[zlib.crc32(f"{left}&{right}".encode()) % _FEATURES] += 1
    return torch.tensor(counts)


class Clicks(IterableDataset[torch.Tensor]):
    """Batches, some chunks each; the pool is kept `_AHEAD` chunks ahead."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="hash") as pool:
            chunks = count()
            coming = deque(pool.submit(hashed, next(chunks)) for _ in range(_AHEAD))
            while True:
                yield torch.stack([coming.popleft().result() for _ in range(_CHUNKS)])
                coming.extend(pool.submit(hashed, next(chunks)) for _ in range(_CHUNKS))


def train(trainer: Trainer) -> None:
    trainer.fit(DataLoader(Clicks(), batch_size=None), trainer.compute_ahead(_STEP_MS, every=8))


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train)
