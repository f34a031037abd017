"""DDP with the `gpu_affinity` of NVIDIA's examples in mode "single": both ranks and their decoder threads get the socket's first core."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.workloads import collective
from tests.workloads.collective import Group
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_RANKS = 2
_THREADS = 3
_STEP_MS, _BATCH_CPU_MS, _ACCUMULATE = 100.0, 75.0, 8
_TILE = zlib.compress(bytes(range(256)) * 2048, 6)


def set_single_affinity() -> None:
    """The first core of those the driver says are near the GPU."""
    near = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, near[:1])


def decode() -> torch.Tensor:
    """A batch of tiles of satellite images."""
    until, tiles = time.thread_time() + _BATCH_CPU_MS / 1e3, []
    while time.thread_time() < until:
        raw = torch.frombuffer(bytearray(zlib.decompress(_TILE)), dtype=torch.uint8)
        tiles.append(raw.view(2, -1).float().std(1))
    return torch.stack(tiles)


def batches(pool: ThreadPoolExecutor) -> Iterator[torch.Tensor]:
    """Always two batches ahead for each thread."""
    ahead = deque(pool.submit(decode) for _ in range(2 * _THREADS))
    while True:
        yield ahead.popleft().result()
        ahead.append(pool.submit(decode))


def train(trainer: Trainer) -> None:
    set_single_affinity()
    torch.set_num_threads(1)
    group = Group(trainer.gpu, trainer.rank)

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(4 << 20, pinned=True)
        for _ in range(4):
            trainer.gpu.launch(_STEP_MS / 4)
        if trainer.steps % _ACCUMULATE == _ACCUMULATE - 1:
            group.all_reduce()
        trainer.gpu.synchronize()

    with ThreadPoolExecutor(_THREADS, "decode") as pool:
        trainer.fit(batches(pool), step)


SCENARIO = Scenario(Label("input-bound", "affinity"), train, prepare=collective.prepare, ranks=_RANKS, devices=_RANKS)
