"""Speech clips are shifted in pitch, by a phase vocoder, while they are loaded: every CPU works at it and the GPU starves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario, cpus

_STEP_MS, _BATCH = 5.5, 6
_OVER = 1.7
"""What the workers' CPUs have to do for a batch, in steps."""
_FFT, _HOP = 256, 64


class Clips(Dataset[torch.Tensor]):
    """Chunks of a clip, each stretched in frequency space and played back; ``cpu_ms`` for all of a clip's."""

    def __init__(self, cpu_ms: float) -> None:
        self.cpu_ms = cpu_ms
        self.window = torch.hann_window(_FFT)

    def __len__(self) -> int:
        return 104_014

    def __getitem__(self, index: int) -> torch.Tensor:
        until, random = time.thread_time() + self.cpu_ms / 1e3, torch.Generator().manual_seed(index)
        chunks: list[torch.Tensor] = []
        while not chunks or time.thread_time() < until:
            chunks.append(self.shifted(torch.randn(1024, generator=random), 2 ** (index % 5 / 12)))
        return torch.stack(chunks[-1:]).log1p()

    def shifted(self, wave: torch.Tensor, ratio: float) -> torch.Tensor:
        bins = torch.stft(wave, _FFT, _HOP, window=self.window, return_complex=True)
        advance = torch.linspace(0, math.pi * _HOP, _FFT // 2 + 1)[:, None]
        turned = torch.diff(bins.angle(), dim=1, prepend=torch.zeros(_FFT // 2 + 1, 1)) - advance
        phase = ((turned - 2 * math.pi * torch.round(turned / (2 * math.pi)) + advance) * ratio).cumsum(1)
        played = torch.istft(torch.polar(bins.abs(), phase), _FFT, _HOP, window=self.window)
        return torch.stft(played, _FFT, _HOP, window=self.window, return_complex=True).abs()


def train(trainer: Trainer) -> None:
    clips = Clips(cpu_ms=_OVER * cpus() * _STEP_MS / _BATCH)
    trainer.fit(loader(clips, cpus(), "spawn", _BATCH, drop_last=True), _step(trainer))


def _step(trainer: Trainer) -> Callable[[object], None]:
    """Nobody asks for the loss: the next batch's pageable copy is what waits for the step before."""

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(3 << 16)
        for _ in range(11):
            trainer.gpu.launch(_STEP_MS / 11)

    return step


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
