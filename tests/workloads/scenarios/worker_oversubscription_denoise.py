"""Micrographs denoised by a native library whose `n_jobs=-1` means a thread per CPU, in each of many workers: they spin for each other."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.utils.data import Dataset

from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_WORKERS, _JOBS = 3 * cpus(), -1
_BATCH, _SIDE, _PASSES = 6, 384, 4
_STEP_MS, _KERNELS = 26, 3

_SOURCE = """
#include <omp.h>
void denoise(float *from, float *to, int side, int passes, int jobs) {
    for (int pass = 0; pass < passes; pass++) {
        #pragma omp parallel for num_threads(jobs > 0 ? jobs : omp_get_num_procs())
        for (int y = 1; y < side - 1; y++)
            for (int x = 1; x < side - 1; x++) {
                const float *at = from + y * side + x;
                float dx = at[1] - at[-1], dy = at[side] - at[-side];
                float flow = 0.2f / (1.0f + 4.0f * (dx * dx + dy * dy));
                to[y * side + x] = *at + flow * (at[1] + at[-1] + at[side] + at[-side] - 4.0f * *at);
            }
        float *swap = from;
        from = to, to = swap;
    }
}
"""


class Micrographs(Dataset[torch.Tensor]):
    """Noise, diffused `_PASSES` times."""

    def __init__(self, library: Path) -> None:
        self.library = library

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        image, spare = torch.rand(_SIDE, _SIDE), torch.zeros(_SIDE, _SIDE)
        pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (image, spare))
        ctypes.CDLL(str(self.library)).denoise(*pointers, _SIDE, _PASSES, _JOBS)
        return image


def train(trainer: Trainer) -> None:
    micrographs = Micrographs(Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "libdenoise.so")
    trainer.fit(
        loader(micrographs, _WORKERS, batch=_BATCH), trainer.compute(_STEP_MS, kernels=_KERNELS, bytes_in=_BATCH * _SIDE * _SIDE * 4)
    )


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    command = ["gcc", "-O2", "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", str(running.folder / "libdenoise.so")]
    subprocess.run(command, input=_SOURCE, text=True, check=True)
    yield


SCENARIO = Scenario(
    Label("input-bound", "worker-oversubscription"), train, prepare=prepare, needs=lambda: "" if shutil.which("gcc") else "needs gcc"
)
