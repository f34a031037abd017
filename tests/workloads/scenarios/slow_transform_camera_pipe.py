"""Frames of one camera, decoded by an `ffmpeg` on one core, come raw through a pipe: the detector waits for that program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_WIDTH, _HEIGHT, _FRAMES = 480, 272, 6
_GROUP_BYTES = 3 * _WIDTH * _HEIGHT * _FRAMES
_DETECT_MS, _LAYERS = 15, 5
_FFMPEG = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {  /* ffmpeg ... GROUP_BYTES pipe:1: motion vectors are applied until the group's CPU time is used */
    long bytes = atol(argv[argc - 2]);
    unsigned char *group = calloc(bytes, 1);
    for (unsigned long seed = 3;;) {
        clock_t until = clock() + CLOCKS_PER_SEC / 20;
        while (clock() < until)
            for (int i = 0; i < 4096; i++) {
                seed = seed * 6364136223846793005ul + 1442695040888963407ul;
                group[(seed >> 24) % bytes] += group[(seed >> 33) % bytes];
            }
        if (fwrite(group, 1, bytes, stdout) != (size_t)bytes)
            return 0;
    }
}
"""


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    source = running.folder / "ffmpeg.c"
    source.write_text(_FFMPEG)
    subprocess.run(["gcc", "-O2", "-o", str(running.folder / "ffmpeg"), str(source)], check=True)
    yield


def groups(pipe: int) -> Iterator[bytearray]:
    """Groups of frames, as soon as each is whole."""
    group = bytearray(_GROUP_BYTES)
    with os.fdopen(pipe, "rb", buffering=0) as frames:
        while True:
            view = memoryview(group)
            while view:
                view = view[frames.readinto(view) :]
            yield group


def train(trainer: Trainer) -> None:
    program = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "ffmpeg"
    command = [program, "-rtsp_transport", "tcp", "-i", "rtsp://gate/1", "-f", "rawvideo", str(_GROUP_BYTES), "pipe:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as ffmpeg:
        assert ffmpeg.stdout is not None
        trainer.fit(groups(os.dup(ffmpeg.stdout.fileno())), trainer.compute(_DETECT_MS, kernels=_LAYERS, bytes_in=_GROUP_BYTES))


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train, prepare=prepare)
