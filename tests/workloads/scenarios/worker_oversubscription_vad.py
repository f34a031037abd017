"""Each worker has a voice detector that, as whisper.cpp does, takes up to four threads, which spin where they meet: too many."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_DETECTOR = r"""
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
enum { WIDTH = 128, LAYERS = 16, FRAMES = 64 };
static float weights[LAYERS][WIDTH][WIDTH], state[LAYERS + 1][FRAMES][WIDTH], speech[FRAMES];
static int16_t clip[FRAMES][WIDTH];
static int threads;
static atomic_int arrived, passed;
static void barrier(void) {
    int now = atomic_load(&passed);
    if (atomic_fetch_add(&arrived, 1) == threads - 1) {
        atomic_store(&arrived, 0);
        atomic_fetch_add(&passed, 1);
        return;
    }
    while (atomic_load_explicit(&passed, memory_order_acquire) == now);
}
static void *compute(void *argument) {
    int mine = (int)(intptr_t)argument;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int frame = mine; frame < FRAMES; frame += threads)
            for (int row = 0; row < WIDTH; row++) {
                float sum = 0;
                for (int i = 0; i < WIDTH; i++) sum += weights[layer][row][i] * state[layer][frame][i];
                state[layer + 1][frame][row] = sum > 0 ? sum : sum * .1f;
            }
        barrier();
    }
    return NULL;
}
int main(int count, char **argument) {
    threads = count > 2 ? atoi(argument[2]) : 1;
    for (int i = 0; i < LAYERS * WIDTH * WIDTH; i++) (&weights[0][0][0])[i] = (float)(i % 2003 - 1001) / 20000;
    while (fread(clip, sizeof clip, 1, stdin) == 1) {
        pthread_t others[64];
        for (int i = 0; i < FRAMES * WIDTH; i++) (&state[0][0][0])[i] = (&clip[0][0])[i] / 32768.f;
        for (int i = 1; i < threads; i++) pthread_create(&others[i], NULL, compute, (void *)(intptr_t)i);
        compute(0);
        for (int i = 1; i < threads; i++) pthread_join(others[i], NULL);
        for (int i = 0; i < FRAMES; i++) speech[i] = state[LAYERS][i][0];
        fwrite(speech, sizeof speech, 1, stdout);
        fflush(stdout);
    }
}
"""
_NAME = "vad-speech-segm"
_SAMPLES, _FRAMES, _BATCH = 64 * 128, 64, 8
_RECORDING = array("h", (int(12000 * math.sin(at * at / 9e4)) for at in range(2 * _SAMPLES))).tobytes()
_WORKERS, _THREADS = 2 * cpus(), min(4, cpus())
_NEEDED = 0.5
"""Of all CPUs, were there one thread for each clip."""


@cache
def detector(threads: int) -> subprocess.Popen[bytes]:
    """This process's own."""
    program = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / _NAME
    return subprocess.Popen([program, "-t", str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


class Clips(Dataset[torch.Tensor]):
    """Seconds of sound, silent wherever nobody speaks."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        at = index * 7919 % _SAMPLES * 2
        sound = _RECORDING[at : at + 2 * _SAMPLES]
        process = detector(self.threads)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(sound)
        process.stdin.flush()
        speech = torch.tensor(struct.unpack(f"{_FRAMES}f", process.stdout.read(4 * _FRAMES)))
        return torch.frombuffer(bytearray(sound), dtype=torch.int16).reshape(_FRAMES, -1) * (speech > speech.median())[:, None]


def train(trainer: Trainer) -> None:
    torch.set_num_threads(1)
    clips, costs = Clips(threads=1), []
    with detector(1):
        for index in range(20):
            began = time.perf_counter()
            clips[index]
            costs.append(time.perf_counter() - began)
    detector.cache_clear()
    step = trainer.compute(sorted(costs)[5] * 1e3 * _BATCH / cpus() / _NEEDED)
    trainer.fit(loader(Clips(_THREADS), _WORKERS, batch=_BATCH), step)


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    command = ["cc", "-O2", "-pthread", "-x", "c", "-", "-o", str(running.folder / _NAME)]
    subprocess.run(command, input=_DETECTOR, text=True, check=True)
    yield


SCENARIO = Scenario(
    Label("input-bound", "worker-oversubscription"), train, prepare=prepare, needs=lambda: "" if cpus() > 1 else "it needs two CPUs"
)
