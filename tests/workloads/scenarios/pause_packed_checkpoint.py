"""A checkpoint every 25 optimizer steps: threads pack and sync pieces of it, as Orbax does, and the script waits for them."""

from __future__ import annotations

import io
import os
import shutil
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario
from tests.workloads.scenarios.pause import disturb

_CONTEXT, _MICROBATCH, _ACCUMULATED = 1024, 12, 4
_SAVE_EVERY = 25 * _ACCUMULATED
_PIECES, _PIECE, _THREADS = 18, 1 << 20, 2


class Packed(IterableDataset[torch.Tensor]):
    """Documents of any length, one after the other, cut into contexts."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        tokens = torch.empty(0, dtype=torch.int64)
        while True:
            while len(tokens) <= _CONTEXT:
                length = int(torch.randint(50, 2000, ()))
                tokens = torch.cat([tokens, torch.randint(50_000, (length,)), torch.tensor([50_256])])
            yield tokens[: _CONTEXT + 1]
            tokens = tokens[_CONTEXT:]


def train(trainer: Trainer) -> None:
    folder, gpu = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), trainer.gpu
    state = [torch.randn(_PIECE) for _ in range(_PIECES)]

    def step(_batch: object) -> None:
        gpu.copy_in(8 * _MICROBATCH * _CONTEXT)
        for _ in range(8):
            gpu.launch(3)
        if trainer.steps % _ACCUMULATED == _ACCUMULATED - 1:
            gpu.launch(6)
            gpu.synchronize()
        if trainer.steps % _SAVE_EVERY == _SAVE_EVERY - 1 and (folder / "save").exists():
            gpu.copy_out(4 * _PIECES * _PIECE)
            save(state, folder)

    trainer.fit(loader(Packed(), workers=1, batch=_MICROBATCH, prefetch_factor=8), step)


def save(state: list[torch.Tensor], folder: Path) -> None:
    """All pieces to a new folder, which then takes the place of the last checkpoint."""
    new, last = folder / "checkpoint.tmp", folder / "checkpoint"
    new.mkdir()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checkpoint") as threads:
        list(threads.map(write, state, [new / f"piece-{number:03}" for number in range(_PIECES)]))
    shutil.rmtree(last, ignore_errors=True)
    new.rename(last)


def write(tensor: torch.Tensor, path: Path) -> None:
    """`torch.save`, packed and synced."""
    whole = io.BytesIO()
    torch.save(tensor, whole)
    with path.open("wb") as file:
        file.write(zlib.compress(whole.getbuffer(), 1))
        file.flush()
        os.fsync(file.fileno())


SCENARIO = Scenario(Label("idle", "pause"), train, disturb)
