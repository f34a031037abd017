"""A speech notebook: one thread prefetches log-mel batches, while word error rates "in the background" pile up in a thread pool."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_RATE, _CLIPS, _BATCH = 16_000, 256, 8
_SCORE_EVERY, _SENTENCES = 4, 160
_WORDS = ("the", "of", "and", "to", "in", "is", "you", "that", "it", "he", "was", "for", "on", "are", "as", "with")


class Prefetch(threading.Thread):
    """The generator of `prefetch_generator`: its thread runs ahead by a few batches."""

    def __init__(self, batches: Iterator[torch.Tensor], ahead: int = 4) -> None:
        super().__init__(daemon=True)
        self._batches = batches
        self._ready: queue.Queue[torch.Tensor] = queue.Queue(ahead)
        self.start()

    def run(self) -> None:
        for batch in self._batches:
            self._ready.put(batch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield self._ready.get()


def log_mels() -> Iterator[torch.Tensor]:
    """Clips kept in memory, a batch of them at a time turned into masked log-mel spectrograms."""
    clips = torch.randn(_CLIPS, _RATE)
    window, mel, bands = torch.hann_window(400), torch.rand(201, 80), torch.arange(80)
    while True:
        waves = clips[torch.randint(_CLIPS, (_BATCH,))]
        waves = waves / waves.abs().amax(1, keepdim=True)
        spectra = torch.stft(waves, 400, 160, window=window, return_complex=True).abs().square_()
        mels = (spectra.transpose(1, 2) @ mel).clamp_min_(1e-10).log10_()
        masked = torch.randint(70, (_BATCH, 1, 1))
        yield mels.masked_fill_((bands >= masked) & (bands < masked + 10), 0.0)


def word_error_rate(said: list[list[str]], meant: list[list[str]]) -> float:
    """Levenshtein's distance over words, as `jiwer` was before it became C++."""
    wrong = 0
    for hypothesis, reference in zip(said, meant, strict=True):
        row = list(range(len(reference) + 1))
        for i, word in enumerate(hypothesis, 1):
            corner, row[0] = row[0], i
            for j, other in enumerate(reference, 1):
                corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (word != other))
        wrong += row[-1]
    return wrong / sum(map(len, meant))


def train(trainer: Trainer) -> None:
    compute = trainer.compute_ahead(50)
    background = ThreadPoolExecutor(2, "metrics")
    meant = [random.choices(_WORDS, k=300) for _ in range(_SENTENCES)]
    said = [random.choices(_WORDS, k=300) for _ in range(_SENTENCES)]

    def step(batch: object) -> None:
        compute(batch)
        if trainer.steps % _SCORE_EVERY == 0:
            background.submit(word_error_rate, said, meant)

    trainer.fit(Prefetch(log_mels()), step)
    background.shutdown(cancel_futures=True)


SCENARIO = Scenario(Label("input-bound", "gil-contention"), train, env={"OMP_NUM_THREADS": "1"})
