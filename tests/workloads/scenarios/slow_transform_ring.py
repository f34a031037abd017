"""Speech: spawned producers, one per CPU, augment wave files and fill slots of shared memory with spectrograms, too slowly."""

from __future__ import annotations

import os
import random
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path

import torch
from torch import multiprocessing
from torch.nn.functional import interpolate

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_FILES, _RATE, _SAMPLES = 24, 16_000, 16_000 * 6
_BATCH, _MELS, _FRAMES, _SLOTS = 8, 80, 601, 3
_FFT = 1 << 17


def produce(slots: torch.Tensor, ready: Connection, folder: Path) -> None:
    """Fill the slots that are free, one after the other."""
    torch.set_num_threads(1)
    room, mels, window = torch.randn(_RATE).mul_(torch.linspace(0, -9, _RATE).exp()), torch.rand(_MELS, 201), torch.hann_window(400)
    free = list(range(_SLOTS))
    while True:
        while not free or ready.poll():
            free.append(ready.recv())
        slot = free.pop(0)
        for item in range(_BATCH):
            sound = augmented(folder / f"{random.randrange(_FILES)}.wav", room)
            power = torch.stft(sound, 400, 160, window=window, return_complex=True).abs().square()
            slots[slot, item] = (mels @ power).clamp_min(1e-10).log10()
        ready.send(slot)


def augmented(path: Path, room: torch.Tensor) -> torch.Tensor:
    """The sound at another speed, in a room with an echo, cut to its length."""
    with wave.open(str(path)) as file:
        sound = torch.frombuffer(bytearray(file.readframes(_SAMPLES)), dtype=torch.int16).float().div_(1 << 15)
    sound = interpolate(sound[None, None], scale_factor=random.uniform(1.0, 1.15), mode="linear")[0, 0]
    wet: torch.Tensor = torch.fft.irfft(torch.fft.rfft(sound, _FFT) * torch.fft.rfft(room, _FFT), _FFT)
    return wet[:_SAMPLES]


def batches(folder: Path) -> Iterator[torch.Tensor]:
    """Whichever slot is full; it is free again when the step has ended."""
    spawn, producers = multiprocessing.get_context("spawn"), {}
    for _ in range(cpus()):
        ours, theirs = spawn.Pipe()
        slots = torch.zeros(_SLOTS, _BATCH, _MELS, _FRAMES).share_memory_()  # type: ignore[no-untyped-call]
        spawn.Process(target=produce, args=(slots, theirs, folder), daemon=True).start()
        producers[ours] = slots
    while True:
        for ready in wait(list(producers)):
            assert isinstance(ready, Connection)
            slot = ready.recv()
            yield producers[ready][slot]
            ready.send(slot)


def train(trainer: Trainer) -> None:
    folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
    trainer.fit(batches(folder), trainer.compute(80 / cpus(), kernels=6, bytes_in=4 * _BATCH * _MELS * _FRAMES))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for number in range(_FILES):
        with wave.open(str(running.folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, _RATE, 0, "NONE", ""))
            file.writeframes(os.urandom(2 * _SAMPLES))
    yield


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, prepare=prepare)
