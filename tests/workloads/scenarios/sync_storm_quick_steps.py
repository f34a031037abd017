"""A tabular model on batches of eight rows: a step takes a fraction of a millisecond, and its loss is asked for after each."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    rows = TensorDataset(torch.randn(1 << 16, 16), torch.zeros(1 << 16))
    trainer.fit(loader(rows, workers=0), trainer.compute(0.15, kernels=2, bytes_in=512))


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
