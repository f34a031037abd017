"""Somebody stopped a worker; the loader keeps the order of its batches, so everything waits for that one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.workloads.data import Images
from tests.workloads.loop import Trainer, loader
from tests.workloads.runner import Running
from tests.workloads.scenario import Label, Scenario


def train(trainer: Trainer) -> None:
    trainer.fit(loader(Images(cpu_ms=1), workers=2), trainer.compute(30))


@contextmanager
def disturb(running: Running) -> Iterator[None]:
    worker = running.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


SCENARIO = Scenario(Label("input-bound", "hung-worker"), train, disturb)
