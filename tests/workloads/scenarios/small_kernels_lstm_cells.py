"""A language model's LSTM written with cells: for every token and layer a handful of kernels on a batch of twenty rows."""

from __future__ import annotations

import ctypes

import torch
from torch.utils.data import TensorDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_TOKENS, _LAYERS, _BATCH = 70, 2, 20
_CELL = ((0.017, 16), (0.017, 16), (0.006, 4), (0.006, 4), (0.007, 2), (0.006, 4), (0.007, 2))
"""Length in ms and blocks: two matrix products, the gates, the new state."""
_LOG_EVERY = 20


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu
    cuda = ctypes.CDLL("libcudart.so.12")
    text = TensorDataset(torch.randint(0, 10_000, (40_000, _TOKENS)))

    def step(batch: object) -> None:
        gpu.copy_in(batch[0].nbytes)  # type: ignore[index]
        for _ in range(_TOKENS * _LAYERS):
            for length_ms, blocks in _CELL:
                gpu.launch(length_ms, blocks)
        for _ in range(_TOKENS * _LAYERS):
            for length_ms, blocks in reversed(_CELL):
                gpu.launch(length_ms, blocks)
                gpu.launch(length_ms, blocks)
        if trainer.steps % _LOG_EVERY == 0:
            cuda.cudaDeviceSynchronize()

    trainer.fit(loader(text, workers=1, start="spawn", batch=_BATCH, shuffle=True), step)


SCENARIO = Scenario(Label("busy-not-working", "small-kernels"), train)
