"""Video clips, a thread that takes them from the loader in advance, and an evaluation now and then: all queues are full, all wait."""

from __future__ import annotations

import multiprocessing
import os
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_VIDEOS, _FRAMES, _SIDE = 24, 32, 112
_STEP_MS, _LOG_EVERY, _EVALUATE_EVERY, _EVALUATED = 240, 5, 14, 4


class Clips(Dataset[torch.Tensor]):
    """Every second frame of a video, which is a key frame and what changes from each frame to the next; zoomed in somewhere."""

    def __init__(self, length: int) -> None:
        self.folder, self.length = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        raw = bytearray(zlib.decompress((self.folder / f"{index % _VIDEOS}.vid").read_bytes()))
        frames = torch.frombuffer(raw, dtype=torch.uint8).reshape(_FRAMES, 3, _SIDE, _SIDE).cumsum(0, dtype=torch.uint8)
        top, left = random.randrange(_SIDE // 4), random.randrange(_SIDE // 4)
        return functional.interpolate(frames[::2, :, top : top + 80, left : left + 80].float(), _SIDE, mode="bilinear").byte()


def background(batches: DataLoader[object]) -> Iterator[object]:
    """The same batches, taken by a thread that stays three ahead."""
    ready: Queue[object] = Queue(3)

    def take() -> None:
        for batch in batches:
            ready.put(batch)

    Thread(target=take, name="background", daemon=True).start()
    return iter(ready.get, None)


def train(trainer: Trainer) -> None:
    multiprocessing.set_forkserver_preload(["torch"])
    gpu, validation = trainer.gpu, loader(Clips(2 * _EVALUATED), workers=1, start="forkserver", batch=2)

    def forward(length_ms: float) -> None:
        gpu.copy_in(1 << 20, pinned=True)
        for _ in range(24):
            gpu.launch(length_ms / 24)

    def step(_clips: object) -> None:
        forward(_STEP_MS)
        if trainer.steps % _EVALUATE_EVERY == 0:  # at the first one too, to find mistakes early
            for _ in validation:
                forward(_STEP_MS / 3)
        if trainer.steps % _LOG_EVERY == 2:
            gpu.synchronize()

    clips = loader(Clips(1 << 20), workers=5, start="forkserver", batch=2, prefetch_factor=6, shuffle=True)
    trainer.fit(background(clips), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    for video in range(_VIDEOS):
        changes = b"".join(os.urandom(1024) + bytes(3 * _SIDE * _SIDE - 1024) for _ in range(_FRAMES - 1))
        (running.folder / f"{video}.vid").write_bytes(zlib.compress(os.urandom(3 * _SIDE * _SIDE) + changes))
    yield


SCENARIO = Scenario(HEALTHY, train, prepare=prepare)
