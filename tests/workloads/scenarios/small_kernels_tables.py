"""A click model with 256 small embedding tables, each looked up, sorted and updated by kernels of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_TABLES = 256
_LOOKUP = [("offsets", 0.005, 1), ("embedding_bag", 0.009, 8), ("cat", 0.006, 4)]
_BACKWARD = [("slice", 0.005, 4), ("iota", 0.005, 1), ("radix_sort", 0.012, 2), ("unique", 0.008, 2), ("sum_rows", 0.010, 6)]
_ADAM = [("exp_avg", 0.007, 6), ("exp_avg_sq", 0.008, 6), ("sqrt", 0.006, 6), ("addcdiv", 0.007, 6), ("scatter", 0.008, 6)]
_MLP_MS = 0.4
_LOG_EVERY = 25
_PR_SET_NAME = 15


class Clicks(IterableDataset[torch.Tensor]):
    """Hashed features of a click log, a block of rows at a time; every worker has its part of the log."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        random = torch.Generator().manual_seed(info.id if info else 0)
        while True:
            yield torch.randint(0, 5000, (16, _TABLES), generator=random, dtype=torch.int32)


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    engine = ThreadPoolExecutor(1, initializer=partial(ctypes.CDLL(None).prctl, _PR_SET_NAME, b"pt_autograd_0"))

    def run(kernels: list[tuple[str, float, int]]) -> None:
        for _name, length_ms, blocks in kernels:
            gpu.launch(length_ms, blocks)

    def backward() -> None:
        gpu.launch(2 * _MLP_MS)
        for _table in range(_TABLES):
            run(_BACKWARD)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes, pinned=True)
        for _table in range(_TABLES):
            run(_LOOKUP)
        gpu.launch(_MLP_MS)
        engine.submit(backward).result()
        for _table in range(_TABLES):
            run(_ADAM)
        if trainer.steps % _LOG_EVERY == 0:
            gpu.copy_out(4)

    trainer.fit(loader(Clicks(), workers=2, prefetch_factor=4), step)


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
