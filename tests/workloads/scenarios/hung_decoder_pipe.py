"""Clips decoded by a program whose stdout is read to its end before its stderr: a damaged clip brings more warnings than a pipe holds."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import torch
from torch.utils.data import Sampler

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_CLIPS, _LENGTHS = 24, (8, 16)
_BATCH, _BATCHES = 4, 500
_FRAME_BYTES = 3 * 32 * 32
_DECODER = """#!/bin/sh
while read -r frame; do
    echo "[h264 @ 0x55d0c8] error while decoding MB $frame, bytestream -7: concealing 8160 DC, 8160 AC errors" >&2
done < "$1.damaged"
exec gzip -dc "$1"
"""


class Clips(Images):
    """Clips of different lengths, which another program makes raw frames of."""

    def __getitem__(self, index: int) -> torch.Tensor:
        folder = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"])
        with Popen([folder / "ffmpeg", folder / f"clip-{index}"], stdout=PIPE, stderr=PIPE) as decoder:
            assert decoder.stdout is not None
            assert decoder.stderr is not None
            frames, _warnings = decoder.stdout.read(), decoder.stderr.read()
        return torch.frombuffer(bytearray(frames), dtype=torch.uint8).reshape(-1, 3, 32, 32).float()


class Buckets(Sampler[list[int]]):
    """Batches of clips that are equally long."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(_BATCHES):
            bucket = random.randrange(len(_LENGTHS))
            yield random.sample(range(bucket, _CLIPS, len(_LENGTHS)), _BATCH)


def train(trainer: Trainer) -> None:
    clips = loader(Clips(0), workers=3, start="forkserver", batch=1, batch_sampler=Buckets(), prefetch_factor=2)
    trainer.fit(clips, trainer.compute_ahead(60, every=5))


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    (running.folder / "ffmpeg").write_text(_DECODER)
    (running.folder / "ffmpeg").chmod(0o755)
    for clip in range(_CLIPS):
        frames = os.urandom(_FRAME_BYTES * _LENGTHS[clip % len(_LENGTHS)])
        (running.folder / f"clip-{clip}").write_bytes(gzip.compress(frames, 1))
        (running.folder / f"clip-{clip}.damaged").touch()
    yield


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "clip-3.damaged").write_text("".join(f"{i % 120} {i // 120}\n" for i in range(2000)))
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb, prepare)
