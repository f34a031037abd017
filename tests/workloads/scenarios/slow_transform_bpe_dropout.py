"""A code model whose workers split source into tokens: with BPE dropout from some epoch on, no word comes from the cache any more."""

from __future__ import annotations

import os
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch.utils.data import IterableDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_CONTEXTS, _LENGTH, _VOCABULARY, _DROPOUT = 12, 2048, 4096, 0.1
_BATCH, _ACCUMULATE, _LAYERS = _CONTEXTS * _LENGTH, 8, 12


class Source(IterableDataset[torch.Tensor]):
    """Batches of full contexts, packed from the documents of the standard library in any order."""

    def __init__(self, flag: Path) -> None:
        paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
        self.documents = [re.findall(r"\s?\w+|\s?\W", path.read_text(errors="replace")) for path in paths]
        words = {word for document in self.documents for word in document}
        pieces = Counter(word[start:end] for word in words for end in range(2, len(word) + 1) for start in range(end - 1))
        self.ranks = {piece: rank for rank, (piece, _) in enumerate(pieces.most_common(_VOCABULARY))}
        self.cache = {word: self.merge(word, 0.0) for word in words}
        self.flag = flag

    def __iter__(self) -> Iterator[torch.Tensor]:
        tokens: list[int] = []
        while True:
            dropout = _DROPOUT if self.flag.exists() else 0.0
            for word in random.choice(self.documents):
                tokens += self.merge(word, dropout) if dropout else self.cache[word]
                if len(tokens) >= _BATCH:
                    yield torch.tensor(tokens[:_BATCH]).view(_CONTEXTS, _LENGTH)
                    tokens.clear()

    def merge(self, word: str, dropout: float) -> list[int]:
        """Byte-pair encoding; each merge is forgotten with the chance of ``dropout``."""
        parts = list(word)
        while True:
            pairs = ((self.ranks.get(a + b), at) for at, (a, b) in enumerate(pairwise(parts)))
            known = [(rank, at) for rank, at in pairs if rank is not None and random.random() >= dropout]
            if not known:
                return [self.ranks.get(part, 0) for part in parts]
            at = min(known)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]


def train(trainer: Trainer) -> None:
    source, gpu = Source(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "dropout"), trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(8 * _BATCH, pinned=True)
        for _ in range(_LAYERS):
            gpu.launch(24 / cpus() / _LAYERS)
        if trainer.steps % _ACCUMULATE == _ACCUMULATE - 1:
            gpu.launch(2)  # the optimizer, and the loss
            gpu.synchronize()

    trainer.fit(loader(source, workers=cpus(), batch=None, prefetch_factor=5), step)  # type: ignore[arg-type]


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "dropout").touch()
    yield


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, disturb)
