"""Each of four threads reads clips from the pipe of an ffmpeg, a new one for each video, and all are far ahead of the model."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import torch

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import HEALTHY, Scenario

_READERS, _QUEUED = 4, 8
_FRAMES, _SIDE = 16, 128
_CLIP_BYTES = _FRAMES * 3 * _SIDE * _SIDE
_LAYERS, _LAYER_MS, _LOGGED = 12, 10.0, 4
_FFMPEG = """
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {  /* ffmpeg CLIPS FRAME_BYTES: rawvideo, 16 frames a clip */
    long frames = 16 * atol(argv[1]), bytes = atol(argv[2]);
    unsigned char *frame = calloc(bytes, 1);
    for (long number = 0; number < frames; number++) {
        for (int pass = 0; pass < 4; pass++)
            for (long i = 1; i < bytes; i++)
                frame[i] = (frame[i] * 5 + frame[i - 1] * 3 + number) >> 3;
        if (fwrite(frame, 1, bytes, stdout) != (size_t)bytes)
            return 1;
    }
    return 0;
}
"""


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    source = running.folder / "ffmpeg.c"
    source.write_text(_FFMPEG)
    subprocess.run(["gcc", "-O1", "-o", str(running.folder / "ffmpeg"), str(source)], check=True)
    yield


def _read(clips: Queue[torch.Tensor]) -> None:
    program = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "ffmpeg"
    while True:
        command = [str(program), str(random.randint(20, 80)), str(_CLIP_BYTES // _FRAMES)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as ffmpeg:
            assert ffmpeg.stdout is not None
            while len(raw := ffmpeg.stdout.read(_CLIP_BYTES)) == _CLIP_BYTES:
                clip = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(_FRAMES, _SIDE, _SIDE, 3)
                clips.put(clip.flip(2) if random.random() < 0.5 else clip)


def _batches() -> Iterator[torch.Tensor]:
    """A clip of each reader."""
    queues: list[Queue[torch.Tensor]] = [Queue(_QUEUED) for _ in range(_READERS)]
    for queue in queues:
        Thread(target=_read, args=(queue,), daemon=True).start()
    while True:
        yield torch.stack([queue.get() for queue in queues])


def train(trainer: Trainer) -> None:
    gpu = trainer.gpu

    def step(_batch: object) -> None:
        gpu.copy_in(_READERS * _CLIP_BYTES, pinned=True)
        for _ in range(_LAYERS):
            gpu.launch(_LAYER_MS)
        if trainer.steps % _LOGGED == 0:
            gpu.synchronize()

    trainer.fit(_batches(), step)


SCENARIO = Scenario(HEALTHY, train, prepare=prepare, env={"OMP_NUM_THREADS": "1"})
