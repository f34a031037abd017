"""Articles tokenized by forkserver workers; the training loop itself packs them into long rows and builds their attention masks."""

from __future__ import annotations

import random

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_WORKERS, _BATCH = 2, 16
_ROW, _ROWS = 1024, 6
_STEP_MS, _KERNELS = 24, 6


class Articles(Dataset[list[int]]):
    """Token ids, most articles short and some long."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> list[int]:
        source = random.Random(index)
        return source.choices(range(32_000), k=min(_ROW, int(source.lognormvariate(5.7, 0.7)) + 1))


def packed(articles: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """First fit, longest first; the tokens, their positions, and who may see whom: earlier tokens of the same article."""
    rows: list[list[list[int]]] = [[] for _ in range(_ROWS)]
    for article in sorted(articles, key=len, reverse=True):
        row = next((row for row in rows if sum(map(len, row)) + len(article) <= _ROW), None)
        if row is not None:
            row.append(article)
    tokens, positions = torch.zeros(_ROWS, _ROW, dtype=torch.long), torch.zeros(_ROWS, _ROW, dtype=torch.long)
    owner = torch.zeros(_ROWS, _ROW, dtype=torch.long)
    for number, row in enumerate(rows):
        at = 0
        for article_number, article in enumerate(row, 1):
            end = at + len(article)
            tokens[number, at:end] = torch.tensor(article)
            positions[number, at:end] = torch.arange(len(article))
            owner[number, at:end] = article_number
            at = end
    same = owner[:, :, None] == owner[:, None, :]
    mask = same & torch.ones(_ROW, _ROW, dtype=torch.bool).tril()
    return tokens, positions, mask


def train(trainer: Trainer) -> None:
    def step(articles: object) -> None:
        assert isinstance(articles, list)
        for tensor in packed(articles):
            trainer.gpu.copy_in(tensor.nbytes)
        for _ in range(_KERNELS):
            trainer.gpu.launch(_STEP_MS / _KERNELS)
        trainer.gpu.copy_out()

    trainer.fit(loader(Articles(), _WORKERS, start="forkserver", batch=_BATCH, collate_fn=list), step)


SCENARIO = Scenario(Label("input-bound", "main-thread-preprocessing"), train, env={"OMP_NUM_THREADS": "1"})
