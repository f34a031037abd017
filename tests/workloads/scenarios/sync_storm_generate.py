"""Fine-tuning a language model by its own answers: while it writes them, `if finished.all()` after each token makes the host wait."""

from __future__ import annotations

import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from tests.workloads.data import numbers
from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_PROMPTS, _LONGEST, _VOCABULARY = 32, 96, 50_257
_SHORTEST_ANSWER, _LONGEST_ANSWER = 180, 300
_TOKEN_MS, _TOKEN_HOST_MS = (0.12, 0.12, 0.07), 0.25  # attention, feed-forward, sampling; what generate() does in Python
_UPDATES, _UPDATE_MS = 2, 16


class Prompts(Dataset[torch.Tensor]):
    """Tokens of prompts, each of a length of its own."""

    def __len__(self) -> int:
        return 1 << 18

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(_VOCABULARY, (8 + index % (_LONGEST - 8),))


def pad(prompts: list[torch.Tensor]) -> torch.Tensor:
    """A batch as long as its longest prompt."""
    return pad_sequence(prompts, batch_first=True)


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def generate() -> None:
        for _ in range(random.randint(_SHORTEST_ANSWER, _LONGEST_ANSWER)):
            numbers(_TOKEN_HOST_MS)  # mask and cache made longer, criteria and processors asked: less than the GPU needs for the token
            for kernel_ms in _TOKEN_MS:
                gpu.launch(kernel_ms)
            gpu.copy_out(1)
            gpu.synchronize()

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        generate()
        for _ in range(_UPDATES):
            for share in (0.3, 0.6, 0.1):  # forward, backward, optimizer
                gpu.launch(_UPDATE_MS * share)
        gpu.copy_out(8)
        gpu.synchronize()

    trainer.fit(loader(Prompts(), workers=1, start="forkserver", batch=_PROMPTS, collate_fn=pad, shuffle=True), step)


SCENARIO = Scenario(Label("wait-heavy", "sync-storm"), train)
