"""A Pool gives up its feature processes after so many batches as the decoder leaks; each new one imports torch and the lexicon anew."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import random
from collections import deque
from collections.abc import Iterator

import torch

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_RATE, _HOP, _BATCH = 16_000, 160, 8
_STAGES_S = (2.0, 4.0, 6.0)
_TASKS_PER_CHILD = 20

_lexicon: dict[str, list[str]] = {}


def read_lexicon() -> None:
    """What each process needs before its first batch."""
    torch.set_num_threads(1)
    lines = ("".join(word) + " " + " ".join(word).upper() for word in itertools.product("abdeiklmnorstu", repeat=4))
    _lexicon.update((word, phones) for word, *phones in map(str.split, lines))


def utterance(seconds: float, words: list[str]) -> tuple[torch.Tensor, list[str]]:
    """Log spectrum and phones of one recording."""
    wave = torch.rand(int(seconds * _RATE)).sub_(0.5)
    spectrum = torch.stft(wave, 400, _HOP, window=torch.hann_window(400), return_complex=True).abs().add_(1e-6).log_()
    return spectrum[:80], [phone for word in words for phone in _lexicon[word]]


def batch(lengths: list[float]) -> bytes:
    """A bucket's features, padded to its longest, as bytes: tensors in shared memory would go with the process."""
    features, phones = zip(*(utterance(seconds, ["dela", "sinu", "mora"]) for seconds in lengths), strict=True)
    padded = torch.nn.utils.rnn.pad_sequence([one.T.contiguous() for one in features], batch_first=True)
    torch.save((padded.half(), phones), out := io.BytesIO())
    return out.getvalue()


def curriculum() -> Iterator[list[float]]:
    """Short epochs of buckets of like lengths, shorter ones in the earlier stages."""
    chance = random.Random(7)
    for epoch in itertools.count():
        longest = _STAGES_S[min(epoch, len(_STAGES_S) - 1)]
        lengths = sorted(chance.uniform(1.5, longest) for _ in range(40 * _BATCH))
        buckets = [lengths[at : at + _BATCH] for at in range(0, len(lengths), _BATCH)]
        chance.shuffle(buckets)
        yield from buckets


def train(trainer: Trainer) -> None:
    step, buckets, processes = trainer.compute(80 / cpus()), curriculum(), cpus()
    with multiprocessing.get_context("spawn").Pool(processes, read_lexicon, maxtasksperchild=_TASKS_PER_CHILD) as pool:
        ahead = deque(pool.apply_async(batch, (next(buckets),)) for _ in range(4 * processes))

        def batches() -> Iterator[object]:
            while True:
                yield torch.load(io.BytesIO(ahead.popleft().get()))
                ahead.append(pool.apply_async(batch, (next(buckets),)))

        trainer.fit(batches(), step)


SCENARIO = Scenario(Label("input-bound", "worker-respawn"), train)
