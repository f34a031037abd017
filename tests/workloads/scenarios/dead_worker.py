"""A home-made multiprocessing loader whose only worker was killed: its trainer reads for ever from a queue nobody fills."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import Queue
from pathlib import Path

from tests.workloads.data import decode
from tests.workloads.loop import Trainer
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def load(queue: Queue[object]) -> None:
    """The worker: a batch's bytes, again and again."""
    while True:
        queue.put(decode(8).tolist())


def train(trainer: Trainer) -> None:
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue(4)
    workers = [fork.Process(target=load, args=(queue,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    pids = " ".join(str(worker.pid) for worker in workers)
    (Path(os.environ["GPUTOP_WORKLOAD_FOLDER"]) / "workers").write_text(pids)
    trainer.fit(iter(queue.get, None), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    for pid in (running.folder / "workers").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    yield


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
