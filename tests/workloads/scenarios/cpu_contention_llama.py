"""Colleagues serve language models from the CPUs beside the training, a server for each: their threads take the workers' turns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.workloads.data import Images
from tests.workloads.hogs import hogs
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario, cpus

_STEP_MS, _KERNELS, _BATCH = 5.0, 5, 4
_SERVER, _SERVERS = "llama-server", 6


def train(trainer: Trainer) -> None:
    images = Images(cpu_ms=0.42 * cpus() * _STEP_MS / _BATCH)
    trainer.fit(loader(images, cpus() + 1, "forkserver", _BATCH, prefetch_factor=3), _one_step_behind(trainer))


def _one_step_behind(trainer: Trainer) -> Callable[[object], None]:
    """Each step is launched while the one before it runs, whose event is then waited for."""
    cuda = ctypes.CDLL("libcudart.so.12")
    events = [ctypes.c_void_p() for _ in range(2)]
    for event in events:
        cuda.cudaEventCreate(ctypes.byref(event))

    def step(_batch: object) -> None:
        trainer.gpu.copy_in(3 << 18, pinned=True)
        for _ in range(_KERNELS):
            trainer.gpu.launch(_STEP_MS / _KERNELS)
        cuda.cudaEventRecord(events[trainer.steps % 2], None)
        if trainer.steps:
            cuda.cudaEventSynchronize(events[(trainer.steps - 1) % 2])

    return step


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    with ExitStack() as servers:
        for _ in range(_SERVERS):
            servers.enter_context(hogs(running, {_SERVER: 2 * cpus()}, duty_pct=92, period_ms=600))
        yield


SCENARIO = Scenario(Label("input-bound", "cpu-contention", frozenset({_SERVER})), train, disturb)
