"""Speech training on spectrograms of clips of any length, until logrotate lets `xz` compress the logs of three services at once."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.utils.data import IterableDataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_SERVICES, _LINES, _FILES = ("nginx", "kafka", "gitlab"), 60_000, 500
_CLIPS, _ACCUMULATED, _EVALUATE_AFTER, _HELD_OUT = 12, 2, 60, 3
_COMPRESS = ("setpriv", "--pdeathsig", "KILL", "xz", "--stdout", "--keep", "--block-size=512KiB")


class Clips(IterableDataset[torch.Tensor]):
    """Speech for ever: clips of 0.5 to 1.5 s at 16 kHz as power spectra, 2.5 to 7.5 ms of CPU time each."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        window = torch.hann_window(400)
        while True:
            length = random.uniform(0.5, 1.5)
            until, wave = time.thread_time() + 5e-3 * length, torch.randn(int(16_000 * length))
            while True:
                spectrum = torch.stft(wave, 400, 160, window=window, return_complex=True).abs().square_()
                if time.thread_time() >= until:
                    break
            yield spectrum.log1p_().T


def pad(clips: list[torch.Tensor]) -> torch.Tensor:
    """All as long as the longest."""
    return torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)


def train(trainer: Trainer) -> None:
    gpu, length = trainer.gpu, 80 / cpus()  # of GPU for a batch of 60 ms of CPU

    def step(_batch: object) -> None:
        gpu.copy_in(2 << 20)
        for _ in range(3):
            gpu.launch(length / 3)
        if trainer.steps % _ACCUMULATED:
            gpu.synchronize()
        if trainer.steps % _EVALUATE_AFTER == _EVALUATE_AFTER - 1:
            gpu.launch(_HELD_OUT * length / 3)  # held-out batches that stay on the GPU
            gpu.synchronize()

    trainer.fit(loader(Clips(), workers=cpus(), start="spawn", batch=_CLIPS, collate_fn=pad, prefetch_factor=3), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as stack:
        lines = [f"{i * 7:012} GET /v1/{random.getrandbits(64):x} 200 {i * i % 9973}us\n" for i in range(_LINES)]
        for service in _SERVICES:
            log = running.folder / f"{service}.log.1"
            log.write_text("".join(lines))
            command = [*_COMPRESS, f"--threads={2 * cpus()}", *[str(log)] * _FILES]
            running.blame(stack.enter_context(running.child(command, stdout=subprocess.DEVNULL)).pid, "xz")
        yield
        running.account()


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({"xz"})), train, disturb)
