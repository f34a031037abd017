"""An inference engine starts: it reads its weights, mapped shards, from a slow disk and copies tensor by tensor to the GPU."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_READ_BYTES_PER_S = 5 << 20
_TENSOR_BYTES = 2 << 20
_TOKEN_MS = 22


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    with slow_disk.file(running), slow_disk.from_birth(running, _READ_BYTES_PER_S):
        yield


def train(trainer: Trainer) -> None:
    path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
    print("ready", flush=True)
    gpu = trainer.gpu
    with slow_disk.opened(path, os.O_RDONLY) as shard, mmap.mmap(shard, 0, prot=mmap.PROT_READ) as weights:
        for at in range(0, len(weights), _TENSOR_BYTES):
            gpu.allocate(_TENSOR_BYTES)
            weights[at : at + _TENSOR_BYTES]
            gpu.copy_in(_TENSOR_BYTES)
            gpu.synchronize()
    trainer.fit(iter(int, 1), trainer.compute(_TOKEN_MS, kernels=24))


SCENARIO = Scenario(Label("input-bound", "disk-io"), train, prepare=prepare, needs=slow_disk.missing, least_s=24.0)
