"""A vLLM starts: its engine reads the weights, mapped shards, from a slow disk, while the API server waits for it and does not listen yet.

Truth: nobody is served and the GPU is held without work (input-bound), because the weights come slowly (model-load).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.workloads import served, slow_disk
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario

_READ_BYTES_PER_S = 5 << 20
_TENSOR_BYTES = 2 << 20


@contextmanager
def prepare(running: Running) -> Iterator[None]:
    """The weights, on a disk that is slow from the first byte on, and clients that wait for the server."""
    with slow_disk.file(running), slow_disk.from_birth(running, _READ_BYTES_PER_S), served.asked(running, clients=4, answer=8):
        yield


def train(trainer: Trainer) -> None:
    print("ready", flush=True)

    def load() -> None:
        path = Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "samples"
        with slow_disk.opened(path, os.O_RDONLY) as shard, mmap.mmap(shard, 0, prot=mmap.PROT_READ) as weights:
            for at in range(0, len(weights), _TENSOR_BYTES):
                trainer.gpu.allocate(_TENSOR_BYTES)
                weights[at : at + _TENSOR_BYTES]
                trainer.gpu.copy_in(_TENSOR_BYTES)
                trainer.gpu.synchronize()

    served.engine(trainer, pass_ms=20.0, load=load)


SCENARIO = Scenario(Label("input-bound", "model-load"), train, prepare=prepare, needs=slow_disk.missing, least_s=24.0)
