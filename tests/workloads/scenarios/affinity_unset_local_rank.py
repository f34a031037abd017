"""Each rank binds itself to its share of the cores by a launcher's variable that nobody has set: all take the first share."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.workloads import collective
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_RANKS, _BATCH, _STEPS = 2, 8, 60
_CPU_MS, _GPU_MS = 1.55, 20.0
"""Of an utterance's features and of a batch's step, for each second of speech."""


def bind() -> None:
    """As mpirun would have it; this job was started otherwise."""
    cores, local = sorted(os.sched_getaffinity(0)), int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0"))
    share = len(cores) // _RANKS
    os.sched_setaffinity(0, cores[local * share : (local + 1) * share])


class Speech(Dataset[torch.Tensor]):
    """Recordings, noise and reverberation added until the CPU time is spent; an index is a length in ms."""

    def __getitem__(self, length_ms: int) -> torch.Tensor:
        until, wave, window = time.thread_time() + length_ms * _CPU_MS / 1e6, torch.rand(length_ms * 16), torch.hann_window(400)
        while True:
            wave = wave.add(torch.rand_like(wave), alpha=0.1)
            spectrum = torch.stft(wave, 400, 160, window=window, return_complex=True).abs()[:80]
            if time.thread_time() >= until:
                return spectrum.T.contiguous()


class Buckets(Sampler[list[int]]):
    """A short epoch of batches of like lengths, the same ones in all ranks."""

    def __init__(self) -> None:
        self._chance = random.Random(3)

    def __iter__(self) -> Iterator[list[int]]:
        lengths = sorted(self._chance.randrange(2500, 5500) for _ in range(_STEPS * _BATCH))
        buckets = [lengths[at : at + _BATCH] for at in range(0, len(lengths), _BATCH)]
        self._chance.shuffle(buckets)
        return iter(buckets)


def pad(waves: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)


def train(trainer: Trainer) -> None:
    gpu, group, workers = trainer.gpu, collective.Group(trainer.gpu, trainer.rank), cpus() // _RANKS
    bind()

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        for _ in range(4):
            gpu.launch(batch.shape[1] / 100 * _GPU_MS / 4 / workers)
        if trainer.steps % _STEPS == _STEPS - 1:
            group.all_reduce()
        gpu.synchronize()

    buckets = DataLoader(Speech(), batch_sampler=Buckets(), num_workers=workers, collate_fn=pad, persistent_workers=True, prefetch_factor=4)
    trainer.fit(buckets, step)


SCENARIO = Scenario(
    Label("input-bound", "affinity"),
    train,
    prepare=collective.prepare,
    ranks=_RANKS,
    devices=_RANKS,
    needs=lambda: "" if cpus() >= _RANKS else "the ranks need a CPU each",
)
