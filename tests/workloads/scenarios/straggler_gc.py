"""Three ranks call gc.collect() after each optimizer step, against leaks as they think; rank 2 alone has many objects to go through."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from tests.workloads import collective
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_RANKS, _HEAVY, _BUCKETS, _MICRO_BATCHES = 3, 2, 3, 2
_UTTERANCES = 350_000


class Speech(IterableDataset[torch.Tensor]):
    """Utterances cut out of a recording, as log spectrograms."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        recording, window = torch.randn(1 << 18), torch.hann_window(400)
        while True:
            at = int(torch.randint(len(recording) - 16_000, ()))
            yield torch.stft(recording[at : at + 16_000], 400, 160, window=window, return_complex=True).abs().log1p()


def utterances() -> list[list[object]]:
    """Start, end and speakers of all that is said in the validation set: two lists each."""
    return [[i * 0.5, i * 0.5 + 2.0, [f"speaker-{i % 40}", i % 7]] for i in range(_UTTERANCES)]


def train(trainer: Trainer) -> None:
    gpu, group, flag = trainer.gpu, collective.Group(trainer.gpu, trainer.rank), Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "validation"
    truth: list[list[object]] = []
    gc.collect()
    gc.freeze()  # what the imports have made is never looked through again

    def step(_batch: object) -> None:
        gpu.copy_in(256 << 10, pinned=True)
        gpu.launch(20)
        if trainer.steps % _MICRO_BATCHES != _MICRO_BATCHES - 1:
            gpu.launch(30)  # under DDP's no_sync()
            return
        for _ in range(_BUCKETS):
            gpu.launch(10)
            group.all_reduce(0.4)
        gpu.synchronize()
        if trainer.rank == _HEAVY and not truth and flag.exists():
            truth.extend(utterances())
        gc.collect()

    trainer.fit(loader(Speech(), workers=1, batch=6, prefetch_factor=3), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    """The validation sets are dealt out to the ranks, and rank 2 gets the large one."""
    (running.folder / "validation").touch()
    running.blame(running.trainer_pids[_HEAVY], "train.py")
    yield
    running.account()


_LABEL = Label("straggler", "straggler-rank", frozenset({"train.py"}))
SCENARIO = Scenario(_LABEL, train, disturb, collective.prepare, ranks=_RANKS, devices=_RANKS)
