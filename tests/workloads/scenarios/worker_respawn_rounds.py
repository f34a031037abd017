"""Active learning: each round picks its samples and makes a new loader, whose workers load the lexicon anew: persistence does not help."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tests.workloads.loop import Over, Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WORDS, _SENTENCES, _LENGTH = 300_000, 5_000, 48
_BATCH, _BATCHES, _MORE = 16, 44, 2


class Picked(IterableDataset[torch.Tensor]):
    """The sentences of a round, shared out to the workers and turned into numbers by a lexicon in a text file."""

    def __init__(self, folder: Path, picked: list[int]) -> None:
        self.folder, self.picked = folder, picked

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        lexicon: dict[str, tuple[int, float]] = {}
        with (self.folder / "lexicon.tsv").open() as file:
            for number, line in enumerate(file):
                word, logarithm = line.rstrip().split("\t")
                lexicon[word] = (number, float(logarithm))
        sentences = (self.folder / "corpus.txt").read_text().splitlines()
        for at in self.picked[worker.id :: worker.num_workers]:
            yield torch.tensor([lexicon[word][0] for word in sentences[at].split()])


def train(trainer: Trainer) -> None:
    folder, compute = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), trainer.compute(20, kernels=8, bytes_in=8 * _BATCH * _LENGTH)
    multiprocessing.set_forkserver_preload([__name__])  # so at least torch is not imported again
    batches = _BATCHES
    with suppress(Over):
        while True:
            picked = random.sample(range(_SENTENCES), _BATCH * batches)
            trainer.epoch(loader(Picked(folder, picked), workers=2, start="forkserver", batch=_BATCH), compute)
            batches = min(batches + _MORE, 3 * _BATCHES // 2)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """A lexicon of words with their log probabilities, and a corpus of such words."""
    words = [f"{number * 2654435761 % (1 << 32):08x}" for number in range(_WORDS)]
    (running.folder / "lexicon.tsv").write_text("".join(f"{word}\t{-number / 3e4:.6f}\n" for number, word in enumerate(words)))
    (running.folder / "corpus.txt").write_text("\n".join(" ".join(random.choices(words, k=_LENGTH)) for _ in range(_SENTENCES)))
    yield


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train, prepare=prepare)
