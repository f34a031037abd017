"""Three ranks average gradients with gloo; from some moment on rank 0 alone makes TensorBoard histograms of its own before each average."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

RANKS = 3
_BACKWARD_MS, _HISTOGRAMS_MS = 120, 90
_BUCKET = 1 << 16


class Summary:
    """What `SummaryWriter.add_histogram` does to each layer: counts, extremes and moments, worked out on the CPU."""

    def __init__(self, layers: int) -> None:
        self._gradients = [torch.randn(_BUCKET) for _ in range(layers)]

    def write(self, cpu_ms: float) -> list[tuple[torch.Tensor, ...]]:
        """As many layers as ``cpu_ms`` of this thread's CPU time allow."""
        rows: list[tuple[torch.Tensor, ...]] = []
        until = time.thread_time() + cpu_ms / 1e3
        while time.thread_time() < until:
            gradient = self._gradients[len(rows) % len(self._gradients)]
            rows.append((torch.histc(gradient, 64), gradient.min(), gradient.max(), gradient.square().sum()))
        return rows


def train(trainer: Trainer) -> None:
    folder, gpu = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]), trainer.gpu
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=trainer.rank, world_size=RANKS)
    bucket, summary, flag = torch.zeros(_BUCKET), Summary(layers=24), folder / "histograms"

    def step(_batch: object) -> None:
        gpu.copy_in(1 << 20)
        gpu.launch(_BACKWARD_MS)
        gpu.copy_out(4 * _BUCKET)
        gpu.synchronize()
        if trainer.rank == 0 and flag.exists():
            summary.write(_HISTOGRAMS_MS)
        distributed.all_reduce(bucket)
        gpu.copy_in(4 * _BUCKET)

    trainer.fit(loader(Images(cpu_ms=0.3), workers=1), step)


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    (running.folder / "histograms").touch()
    yield
    (running.folder / "histograms").unlink()


SCENARIO = Scenario(
    Label("straggler", "straggler-rank"),
    train,
    disturb,
    ranks=RANKS,
    devices=RANKS,
    env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
)
