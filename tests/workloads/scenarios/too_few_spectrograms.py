"""Log-mel spectrograms of speech with `num_workers=1`, as the example had it: one spawned worker, slower than the steps it feeds."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.scenario import Label, Scenario

_WORKERS = 1
_BATCH, _CLIP_CPU_MS = 6, 5.5
_STEP_MS, _KERNELS, _LOSS_EVERY = 22, 8, 20
_RATE, _WINDOW, _BANDS = 16_000, 512, 64


class Speech(Dataset[torch.Tensor]):
    """Seconds of sound at random speeds, each until its share of CPU time is used: the spectrogram of the last one counts."""

    def __init__(self) -> None:
        self.window = torch.hann_window(_WINDOW)
        self.bands = torch.rand(_BANDS, _WINDOW // 2 + 1).softmax(1)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.thread_time() + _CLIP_CPU_MS / 1e3
        sound = torch.randn(_RATE)
        while True:
            sound = sound.roll(int(torch.randint(_RATE, ()))).mul_(0.97)
            spectrum = torch.stft(sound, _WINDOW, _WINDOW // 4, window=self.window, return_complex=True)
            mel = torch.log10((self.bands @ spectrum.abs().square_()).clamp_(min=1e-10))
            if time.thread_time() >= until:
                return mel


def train(trainer: Trainer) -> None:
    def step(_batch: object) -> None:
        trainer.gpu.copy_in(_BATCH * _BANDS * 126 * 4, pinned=True)
        for _ in range(_KERNELS):
            trainer.gpu.launch(_STEP_MS / _KERNELS)
        if trainer.steps % _LOSS_EVERY == 0:
            trainer.gpu.copy_out()

    trainer.fit(loader(Speech(), _WORKERS, start="spawn", batch=_BATCH, prefetch_factor=4), step)


SCENARIO = Scenario(Label("input-bound", "too-few-workers"), train)
