"""Cross-validation of a small tabular model: each fold makes a DataLoader for training and one for validation.

`persistent_workers=True` is set and does not help: the loaders are new objects in every fold, so their workers start anew,
import torch, unpickle the table and end after half a second of work. A fold trains for a few dozen quick steps, hence the GPU
waits for the start of workers most of the time. The rows themselves cost nothing. Starting workers again and again is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_ROWS, _COLUMNS, _FOLDS = 6_000, 48, 5
_BATCH = 128


def _loader(rows: Dataset[object], shuffle: bool) -> DataLoader[object]:
    return DataLoader(
        rows, batch_size=_BATCH, shuffle=shuffle, num_workers=2, persistent_workers=True, multiprocessing_context="forkserver"
    )  # fmt: skip


def _batches() -> Iterator[object]:
    """Fold after fold, for ever: two epochs of training, then the validation."""
    table = TensorDataset(torch.randn(_ROWS, _COLUMNS), torch.randint(0, 2, (_ROWS,)))
    parts = [Subset(table, range(fold, _ROWS, _FOLDS)) for fold in range(_FOLDS)]
    while True:
        for fold, held_out in enumerate(parts):
            train_loader = _loader(ConcatDataset([part for at, part in enumerate(parts) if at != fold]), shuffle=True)
            for _epoch in range(2):
                yield from train_loader
            yield from _loader(held_out, shuffle=False)


def train(trainer: Trainer) -> None:
    trainer.fit(_batches(), trainer.compute(9))


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
