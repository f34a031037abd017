"""Spawned loader processes, one per CPU, that augment on the trainer's GPU: each has a small context there, and cannot keep up."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue

from tests.workloads.data import decode
from tests.workloads.gpu import Gpu
from tests.workloads.loop import Trainer
from tests.workloads.scenario import Label, Scenario, cpus

_MODEL_BYTES, _BUFFER_BYTES = 20 << 30, 256 << 20


def produce(batches: Queue[bytes]) -> None:
    gpu = Gpu(memory_bytes=_BUFFER_BYTES)
    while True:
        decode(60)
        gpu.launch(0.2)
        gpu.synchronize()
        batches.put(bytes(100_000))


def consumed(queues: list[Queue[bytes]]) -> Iterator[bytes]:
    for queue in itertools.cycle(queues):
        yield queue.get()


def train(trainer: Trainer) -> None:
    model = Gpu(memory_bytes=_MODEL_BYTES)
    spawn = multiprocessing.get_context("spawn")
    queues = [spawn.Queue(2) for _ in range(cpus())]
    for queue in queues:
        spawn.Process(target=produce, args=(queue,), daemon=True).start()
    trainer.fit(consumed(queues), trainer.compute(16 / cpus()))
    del model


SCENARIO = Scenario(Label("input-bound", "slow-transform"), train)
