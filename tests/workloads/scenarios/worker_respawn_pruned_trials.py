"""A hyperparameter sweep in one process: every trial has a process pool of its own (spawn), and the pruner soon ends it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from statistics import median

import torch

from tests.workloads.data import decode
from tests.workloads.loop import Over, Trainer
from tests.workloads.scenario import Label, Scenario

_WORKERS, _AHEAD, _SAMPLES = 2, 6, 8
_RUNGS = (16, 32, 56)


@dataclass(frozen=True)
class Setting:
    """What a trial tries."""

    erased: float
    noise: float
    seed: int


def _begin(setting: Setting) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)


def _batch(setting: Setting) -> bytes:
    images = torch.stack([decode(cpu_ms=2) for _ in range(_SAMPLES)])
    images += setting.noise * torch.randn(())
    images[torch.rand(_SAMPLES) < setting.erased] = 0
    return bytes(images.mean(1).clamp(0, 3).mul(64).byte().flatten().tolist())


@contextmanager
def batches(setting: Setting) -> Iterator[Iterator[bytes]]:
    pool = ProcessPoolExecutor(_WORKERS, get_context("spawn"), initializer=_begin, initargs=(setting,))
    coming = deque(pool.submit(_batch, setting) for _ in range(_AHEAD))

    def taken() -> Iterator[bytes]:
        while True:
            yield coming.popleft().result()
            coming.append(pool.submit(_batch, setting))

    try:
        yield taken()
    finally:
        pool.shutdown(cancel_futures=True)


def train(trainer: Trainer) -> None:
    study = random.Random(2)
    step = trainer.compute(40)
    losses: dict[int, list[float]] = {rung: [] for rung in _RUNGS}
    with suppress(Over):
        for seed in count():
            setting = Setting(study.uniform(0, 0.5), study.uniform(0, 0.2), seed)
            with batches(setting) as ready:
                for done in range(1, _RUNGS[-1] + 1):
                    step(next(ready))
                    trainer.tick()
                    if done in losses:
                        losses[done].append(study.gauss(setting.erased, 0.2))
                        if losses[done][-1] >= median(losses[done]):
                            break


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
