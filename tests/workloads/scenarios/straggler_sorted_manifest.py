"""Three ranks split a manifest sorted by length in contiguous parts; the others wait for the one with the talks in gloo's all-reduce."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, Sampler

from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario

_RANKS, _BATCH, _STEPS = 3, 8, 30
_RATE = 8_000
_GPU_MS = 28.0
"""Of a batch, for each second of its longest recording."""


def manifest() -> list[float]:
    """Lengths in seconds, sorted: two parts voice commands, one part talks."""
    chance, part = random.Random(11), _STEPS * _BATCH
    return sorted([chance.uniform(2.5, 4.5) for _ in range(2 * part)] + [chance.uniform(8.5, 11.0) for _ in range(part)])


class Speech(Dataset[torch.Tensor]):
    """The recordings of this rank's part, as spectra."""

    def __init__(self, rank: int) -> None:
        part = _STEPS * _BATCH
        self.lengths = manifest()[rank * part : (rank + 1) * part]

    def __getitem__(self, index: int) -> torch.Tensor:
        wave = torch.rand(int(self.lengths[index] * _RATE)).sub_(0.5)
        return torch.stft(wave, 200, 80, window=torch.hann_window(200), return_complex=True).abs()[:80].T.contiguous()


class Buckets(Sampler[list[int]]):
    """Neighbours in the manifest make a batch; the first epoch takes the short ones first, the later ones any."""

    def __init__(self) -> None:
        self._chance = random.Random(5)
        self._order = list(range(_STEPS))

    def __iter__(self) -> Iterator[list[int]]:
        for bucket in self._order:
            yield list(range(bucket * _BATCH, (bucket + 1) * _BATCH))
        self._chance.shuffle(self._order)


def pad(spectra: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(spectra, batch_first=True)


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{os.environ['GPUTOP_WORKLOAD_FOLDER']}/rendezvous", rank=trainer.rank, world_size=_RANKS)
    gpu, gradients = trainer.gpu, torch.zeros(1 << 17)

    def step(batch: object) -> None:
        assert isinstance(batch, torch.Tensor)
        gpu.copy_in(batch.nbytes)
        for _ in range(6):
            gpu.launch(batch.shape[1] / 100 * _GPU_MS / 6)
        gpu.copy_out(gradients.nbytes)
        dist.all_reduce(gradients)
        gpu.copy_in(gradients.nbytes)
        gpu.launch(1.0)

    speech, buckets = Speech(trainer.rank), Buckets()
    trainer.fit(DataLoader(speech, batch_sampler=buckets, num_workers=1, collate_fn=pad, persistent_workers=True, prefetch_factor=6), step)


SCENARIO = Scenario(
    Label("straggler", "straggler-rank"),
    train,
    ranks=_RANKS,
    devices=_RANKS,
    env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
)
