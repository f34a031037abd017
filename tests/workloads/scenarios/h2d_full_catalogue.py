"""Softmax over a whole catalogue kept in pinned memory: its shards are copied ahead, but a copy lasts three times the scoring of one."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_SHARDS, _ITEMS, _DIMENSIONS = 8, 320_000, 64
_SHARD_BYTES = _ITEMS * _DIMENSIONS * 4  # 82 MB, 7 ms of the bus
_TOWER_MS, _SCORE_MS, _BACKWARD_MS = 3.0, 2.0, 5.0
_USERS, _CATEGORIES = 256, 12
_POLL_S = 0.0005


class Histories(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Ragged lists of what each user clicked, as values and lengths."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            lengths = torch.randint(1, 40, (_USERS * _CATEGORIES,))
            yield torch.randint(random.randrange(1, _SHARDS * _ITEMS), (int(lengths.sum()),)), lengths


class Half:
    """One of the two places on the GPU for a shard, with events for `it is here` and `it is scored`."""

    def __init__(self, cuda: ctypes.CDLL) -> None:
        self.memory, self.here, self.scored = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cudaMalloc(ctypes.byref(self.memory), ctypes.c_size_t(_SHARD_BYTES))
        cuda.cudaEventCreateWithFlags(ctypes.byref(self.here), 2)
        cuda.cudaEventCreateWithFlags(ctypes.byref(self.scored), 2)


class Catalogue:
    """The item table on the host, and the stream that brings it."""

    def __init__(self, trainer: Trainer) -> None:
        self.gpu, self.cuda = trainer.gpu, ctypes.CDLL("libcudart.so.12")
        self.stream, self.table, self.done = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.cuda.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1)
        self.cuda.cudaHostAlloc(ctypes.byref(self.table), ctypes.c_size_t(_SHARDS * _SHARD_BYTES), 0)
        self.cuda.cudaEventCreateWithFlags(ctypes.byref(self.done), 2)
        self.halves = Half(self.cuda), Half(self.cuda)

    def score(self) -> None:
        """Queue all shards; a half is filled again once the shard before last is scored."""
        for shard in range(_SHARDS):
            half = self.halves[shard % 2]
            self.cuda.cudaStreamWaitEvent(self.stream, half.scored, 0)
            source = ctypes.c_void_p((self.table.value or 0) + shard * _SHARD_BYTES)
            self.cuda.cudaMemcpyAsync(half.memory, source, ctypes.c_size_t(_SHARD_BYTES), 1, self.stream)
            self.cuda.cudaEventRecord(half.here, self.stream)
            self.cuda.cudaStreamWaitEvent(None, half.here, 0)
            self.gpu.launch(_SCORE_MS)
            self.cuda.cudaEventRecord(half.scored, None)

    def finish(self) -> None:
        """Poll for the end of the step, as `event.query()` in a loop with a sleep does."""
        self.cuda.cudaEventRecord(self.done, None)
        while self.cuda.cudaEventQuery(self.done):
            time.sleep(_POLL_S)


def train(trainer: Trainer) -> None:
    catalogue = Catalogue(trainer)
    histories = DataLoader(Histories(), batch_size=None, num_workers=1, prefetch_factor=4)

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(1 << 18, pinned=True)
        trainer.gpu.launch(_TOWER_MS)
        catalogue.score()
        trainer.gpu.launch(_BACKWARD_MS)
        catalogue.finish()

    trainer.fit(histories, step)


SCENARIO = Scenario(Label("transfer-bound", "h2d-transfer"), train)
